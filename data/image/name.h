// File names in messages: any bytes, made printable.
#pragma once

#include <string>
#include <string_view>

namespace penstock::data::image {

// The name in quotes, with control bytes, quotes, backslashes and invalid UTF-8 written as \n, \",
// \\ or \xNN, so that a message stays one line of valid text whatever a file is called; at most 400
// bytes of the name's end are shown.
std::string quoted_name(std::string_view name);
// The same without quotes around it.
std::string printable(std::string_view name);

}  // namespace penstock::data::image
