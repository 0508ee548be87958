#include "place.h"

#include <Python.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "tutti/comm/engine/debug_mode.h"

namespace tutti::python {
namespace {

// Flight records keep pointers.
const char* keep_for_ever(PyObject* words) {
  const char* text = PyUnicode_AsUTF8(words);
  if (text == nullptr) PyErr_Clear();  // a path that is no UTF-8
  static std::mutex mutex;
  static auto* const texts = std::make_unique<std::set<std::string>>().release();
  const std::lock_guard lock(mutex);
  return texts->insert(text == nullptr ? "" : text).first->c_str();
}

bool is_torchs(std::string_view file) {
  return file.find("-packages/torch/") != std::string_view::npos;  // site- or dist-
}

class Interpreter {
 public:
  Interpreter() : state_(PyGILState_Ensure()) {}
  ~Interpreter() { PyGILState_Release(state_); }
  Interpreter(const Interpreter&) = delete;

 private:
  PyGILState_STATE state_;
};

CallPlace place_of(PyFrameObject* frame) {
  PyCodeObject* code = PyFrame_GetCode(frame);
  const CallPlace place(keep_for_ever(code->co_filename),
                                static_cast<uint32_t>(PyFrame_GetLineNumber(frame)),
                                keep_for_ever(code->co_name));
  Py_DECREF(code);
  return place;
}

}  // namespace

CallPlace place_of_caller(const char* title) {
  if (!debug_mode() || Py_IsInitialized() == 0) return {"", 0, title};
  const Interpreter interpreter;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr) {
    const CallPlace place = place_of(frame);
    PyFrameObject* const outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    if (!is_torchs(place.file)) {
      Py_XDECREF(outer);
      return place;
    }
    frame = outer;
  }
  return {"", 0, title};
}

}  // namespace tutti::python
