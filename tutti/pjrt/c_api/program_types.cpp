// What a program takes and gives. The interface says the types of its results alone; those of its
// arguments stand in the program that the plugin made of it, which is XLA's HloModuleProto.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include <protozero/pbf_reader.hpp>

#include "tutti/base/error.h"
#include "tutti/pjrt/c_api/detail/handles.h"

namespace tutti::pjrt {
namespace {

using detail::arguments;
using protozero::pbf_reader;

struct KnownType {
  DType dtype;
  PJRT_Buffer_Type type;
  int element;  ///< the same in XLA's PrimitiveType
};

constexpr std::array<KnownType, 13> kTypes{{{DType::boolean, PJRT_Buffer_Type_PRED, 1},
                                            {DType::uint8, PJRT_Buffer_Type_U8, 6},
                                            {DType::int8, PJRT_Buffer_Type_S8, 2},
                                            {DType::uint16, PJRT_Buffer_Type_U16, 7},
                                            {DType::int16, PJRT_Buffer_Type_S16, 3},
                                            {DType::uint32, PJRT_Buffer_Type_U32, 8},
                                            {DType::int32, PJRT_Buffer_Type_S32, 4},
                                            {DType::uint64, PJRT_Buffer_Type_U64, 9},
                                            {DType::int64, PJRT_Buffer_Type_S64, 5},
                                            {DType::float16, PJRT_Buffer_Type_F16, 10},
                                            {DType::bfloat16, PJRT_Buffer_Type_BF16, 16},
                                            {DType::float32, PJRT_Buffer_Type_F32, 11},
                                            {DType::float64, PJRT_Buffer_Type_F64, 12}}};

/// A program without its devices, until this goes.
class Executable {
 public:
  explicit Executable(const detail::ProgramState& program) : api_(program.client->api) {
    auto args = arguments<PJRT_LoadedExecutable_GetExecutable_Args>();
    args.loaded_executable = program.executable;
    api_.call(&PJRT_Api::PJRT_LoadedExecutable_GetExecutable, "PJRT_LoadedExecutable_GetExecutable",
              args);
    executable_ = args.executable;
  }
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  ~Executable() {
    auto args = arguments<PJRT_Executable_Destroy_Args>();
    args.executable = executable_;
    try {
      api_.call(&PJRT_Api::PJRT_Executable_Destroy, "PJRT_Executable_Destroy", args);
    } catch (const Error&) {  // of a destructor: there is nobody whom it could help
    }
  }

  PJRT_Executable* get() const { return executable_; }

 private:
  const detail::Api& api_;
  PJRT_Executable* executable_ = nullptr;
};

/// Fields of XLA's messages, of xla/service/hlo.proto and xla/xla_data.proto.
enum Field : protozero::pbf_tag_type {
  kModuleOfModuleWithConfig = 1,
  kProgramShapeOfModule = 4,
  kParametersOfProgramShape = 1,
  kElementTypeOfShape = 2,
  kDimensionsOfShape = 3,
  kTupleShapesOfShape = 4,
};
constexpr int kTuple = 13;  // among element types

struct Shape {
  int element = 0;
  std::vector<int64_t> dimensions;
  std::vector<pbf_reader> parts;  ///< of a tuple
};

Shape shape_in(pbf_reader message) {
  Shape shape;
  while (message.next()) {
    if (message.tag() == kElementTypeOfShape) {
      shape.element = message.get_enum();
    } else if (message.tag() == kTupleShapesOfShape) {
      shape.parts.push_back(message.get_message());
    } else if (message.tag() != kDimensionsOfShape) {
      message.skip();
    } else if (message.wire_type() == protozero::pbf_wire_type::varint) {
      shape.dimensions.push_back(message.get_int64());
    } else {
      for (const int64_t dimension : message.get_packed_int64())
        shape.dimensions.push_back(dimension);
    }
  }
  return shape;
}

void add_types(const detail::Api& api, const Shape& shape, std::vector<ArrayType>& types) {
  if (shape.element == kTuple) {
    for (const pbf_reader& part : shape.parts) add_types(api, shape_in(part), types);
    return;
  }
  const auto* const known = std::ranges::find(kTypes, shape.element, &KnownType::element);
  if (known == kTypes.end())
    api.fail("PJRT_Executable_OptimizedProgram",
             fmt::format("argument {} has elements of type {}, which tutti has not", types.size(),
                         shape.element));
  types.push_back({.dtype = known->dtype, .shape = shape.dimensions});
}

std::optional<std::vector<ArrayType>> parameters_of(const detail::Api& api, const std::string& code,
                                                    bool has_config) {
  pbf_reader module(code);
  if (has_config && !module.next(kModuleOfModuleWithConfig)) return std::nullopt;
  if (has_config) module = module.get_message();
  if (!module.next(kProgramShapeOfModule)) return std::nullopt;
  std::vector<ArrayType> types;
  pbf_reader program = module.get_message();
  while (program.next(kParametersOfProgramShape))
    add_types(api, shape_in(program.get_message()), types);
  return types;
}

}  // namespace

namespace detail {

PJRT_Buffer_Type type_of(DType dtype) { return kTypes[static_cast<size_t>(dtype)].type; }

DType dtype_of(const Api& api, std::string_view function, PJRT_Buffer_Type type) {
  const auto* const known = std::ranges::find(kTypes, type, &KnownType::type);
  if (known == kTypes.end())
    api.fail(function,
             fmt::format("elements of type {}, which tutti has not", static_cast<int>(type)));
  return known->dtype;
}

int outputs_of(const ProgramState& program) {
  const Executable executable(program);
  auto outputs = arguments<PJRT_Executable_NumOutputs_Args>();
  outputs.executable = executable.get();
  program.client->api.call(&PJRT_Api::PJRT_Executable_NumOutputs, "PJRT_Executable_NumOutputs",
                           outputs);
  return static_cast<int>(outputs.num_outputs);
}

}  // namespace detail

std::vector<ArrayType> Program::output_types() const {
  const detail::Api& api = state_->client->api;
  const Executable executable(*state_);
  auto elements = arguments<PJRT_Executable_OutputElementTypes_Args>();
  elements.executable = executable.get();
  api.call(&PJRT_Api::PJRT_Executable_OutputElementTypes, "PJRT_Executable_OutputElementTypes",
           elements);
  auto shapes = arguments<PJRT_Executable_OutputDimensions_Args>();
  shapes.executable = executable.get();
  api.call(&PJRT_Api::PJRT_Executable_OutputDimensions, "PJRT_Executable_OutputDimensions", shapes);
  std::vector<ArrayType> types;
  const int64_t* dimensions = shapes.dims;
  for (size_t i = 0; i < std::min(elements.num_output_types, shapes.num_outputs); ++i) {
    const int64_t* const end = dimensions + shapes.dim_sizes[i];
    types.push_back({.dtype = detail::dtype_of(api, "PJRT_Executable_OutputElementTypes",
                                               elements.output_types[i]),
                     .shape = {dimensions, end}});
    dimensions = end;
  }
  return types;
}

std::optional<std::vector<ArrayType>> Program::argument_types() const {
  const detail::Api& api = state_->client->api;
  const Executable executable(*state_);
  auto program = arguments<PJRT_Program>();
  auto args = arguments<PJRT_Executable_OptimizedProgram_Args>();
  args.executable = executable.get();
  args.program = &program;
  std::string code;
  try {
    const auto ask = [&] {
      api.call(&PJRT_Api::PJRT_Executable_OptimizedProgram, "PJRT_Executable_OptimizedProgram",
               args);
    };
    ask();
    code.resize(program.code_size);
    program.code = code.data();
    ask();
  } catch (const Error&) {
    return std::nullopt;  // an older one, or one that keeps it to itself
  }
  const std::string_view format(program.format, program.format_size);
  if (format != "hlo" && format != "hlo_with_config") return std::nullopt;
  try {
    return parameters_of(api, code, format == "hlo_with_config");
  } catch (const protozero::exception& error) {
    api.fail("PJRT_Executable_OptimizedProgram", error.what());
  }
}

}  // namespace tutti::pjrt
