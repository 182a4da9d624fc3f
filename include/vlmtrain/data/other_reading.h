#pragma once

#include <string>
#include <string_view>

namespace vlmtrain::data {

/// Returns whether the message of a bad sample is about a key that earlier versions of the program passed over.
bool mentions_ignored_keys(std::string_view message);

/// What to add to such a message where the run was begun by such a version, after a semicolon; empty for others.
std::string explain_ignored_keys(std::string_view message);

}  // namespace vlmtrain::data
