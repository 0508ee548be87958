/// Text inside of XML. Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace tutti::detail {

/// `text` for the inside of an element; what is no character of XML becomes the sign for that.
std::string xml_escaped(std::string_view text);

/// Characters of UTF-8 text.
size_t num_characters(std::string_view text) noexcept;

}  // namespace tutti::detail
