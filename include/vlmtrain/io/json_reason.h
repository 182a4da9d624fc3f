#pragma once

#include <exception>
#include <string>

namespace vlmtrain::io {

/// What an exception of the JSON library says is wrong, without the library's name and numbers, in one line.
std::string describe_json_exception(const std::exception& error);

}  // namespace vlmtrain::io
