#pragma once

#include <cstdint>
#include <string>

namespace vlmtrain {

/// 15209 → "15,209". REQUIRES: number >= 0.
std::string with_commas(int64_t number);

/// "1 tile", "26 tiles".
std::string pluralize(int64_t number, const char* noun);

/// 2246272880 → "2.25 billion", 1300000 → "1.3 million"; below a million exactly, as with_commas().
std::string human_count(int64_t number);

}  // namespace vlmtrain
