#include "tutti/train/model/detail/located.h"

#include <fmt/format.h>

#include <typeinfo>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/log.h"

namespace tutti::detail {
namespace {

// Such are what a program's own handlers look for. By mangled names.
bool is_of_the_program(const std::exception& error) {
  const std::string_view name = typeid(error).name();
  const auto of = [&](std::string_view library) { return name.starts_with(library); };
  return !of("St") && !of("NSt") && !of("N3c10") && !of("N5torch");
}

}  // namespace

std::exception_ptr located(std::string_view place) {
  const auto said = [&](std::string_view what) { return fmt::format("{}: {}", place, what); };
  try {
    throw;
  } catch (const UsageError& error) {
    return std::make_exception_ptr(UsageError(said(error.what())));
  } catch (const DataError& error) {
    return std::make_exception_ptr(DataError(said(error.what())));
  } catch (const WriteError& error) {
    return std::make_exception_ptr(WriteError(said(error.what())));
  } catch (const Error& error) {
    if (typeid(error) != typeid(Error)) return std::current_exception();
    return std::make_exception_ptr(Error(said(error.what())));
  } catch (const std::exception& error) {
    if (is_of_the_program(error)) {
      log(LogLevel::error, "{}", said(error.what()));
      return std::current_exception();
    }
    return std::make_exception_ptr(Error(said(plain_words(error.what()))));
  }
}

}  // namespace tutti::detail
