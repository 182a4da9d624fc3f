#pragma once

#include <cstdint>
#include <string>

namespace vlmtrain {

/// 15209 → "15,209". REQUIRES: number >= 0.
std::string grouped(int64_t number);

/// "1 tile", "26 tiles".
std::string counted(int64_t number, const char* noun);

/// 2246272880 → "2.25 billion", 1300000 → "1.3 million"; below a million exactly, as grouped().
std::string number_words(int64_t number);

}  // namespace vlmtrain
