#include "tutti/train/detail/located.h"

#include <fmt/format.h>

#include <typeinfo>

#include "tutti/base/error.h"

namespace tutti::detail {

std::exception_ptr located(std::string_view place) {
  const auto said = [&](std::string_view what) { return fmt::format("{}: {}", place, what); };
  try {
    throw;
  } catch (const UsageError& error) {
    return std::make_exception_ptr(UsageError(said(error.what())));
  } catch (const DataError& error) {
    return std::make_exception_ptr(DataError(said(error.what())));
  } catch (const Error& error) {
    if (typeid(error) != typeid(Error)) return std::current_exception();
    return std::make_exception_ptr(Error(said(error.what())));
  } catch (const std::exception& error) {
    return std::make_exception_ptr(Error(said(plain_words(error.what()))));
  }
}

}  // namespace tutti::detail
