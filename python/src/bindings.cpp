// The Python module tutti._C: makes backends; tutti/torch.py registers them with c10d.

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tutti/base/error.h"

#include "backend.h"
#include "connect.h"
#include "progress.h"
#include "store_meeting.h"

namespace tutti::python {
namespace {

// Limits of operations are often shorter than what processes need to start.
constexpr Millis kMeetingLimit{60'000};

c10::intrusive_ptr<c10d::Backend> create_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size, const GroupFacts& facts) {
  try {
    StoreMeeting place(store, rank, size);
    auto [group, job] =
        connect_over(place, facts, Deadline(std::max(kMeetingLimit, facts.timeout)));
    return c10::make_intrusive<TuttiBackend>(std::move(group), BackendFacts{.rank = rank,
                                                                            .size = size,
                                                                            .timeout = facts.timeout,
                                                                            .name = facts.name,
                                                                            .job = job});
  } catch (const Error&) {
    std::rethrow_exception(as_c10d_error(std::current_exception()));
  }
}

}  // namespace
}  // namespace tutti::python

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace tutti::python;  // NOLINT: the body of the module
  namespace py = pybind11;
  module.doc() = "tutti's engines as a c10d backend";
  py::class_<TuttiBackend, c10d::Backend, c10::intrusive_ptr<TuttiBackend>>(module, "TuttiBackend")
      .def_property_readonly("options", &TuttiBackend::getBackendOptions)
      .def_property_readonly("engine", &TuttiBackend::engine_name,
                             "what moves the data: \"shm\", \"tcp\", \"hier\" or \"solo\"");
  module.def(
      "create_backend",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
         std::chrono::milliseconds timeout, const std::string& name,
         const std::vector<int>& world_ranks, const c10::intrusive_ptr<TuttiBackend>& world,
         const std::string& towards, const std::string& interface) {
        const GroupFacts facts{.name = name,
                               .world_ranks = world_ranks,
                               .world = world ? world->job() : nullptr,
                               .reach = {towards, interface},
                               .timeout = timeout};
        return create_backend(store, rank, size, facts);
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
      py::arg("world_ranks"), py::arg("world"), py::arg("towards"), py::arg("interface"),
      py::call_guard<py::gil_scoped_release>(),
      "Collective over the ranks that share `store`; connect.h explains the last four.");
  module.def(
      "leave",
      [] {
        Progress::instance().stop();
        leave_jobs();
      },
      py::call_guard<py::gil_scoped_release>(),
      "For the end of the program: stops our threads, tells the others that this is no loss.");
}
