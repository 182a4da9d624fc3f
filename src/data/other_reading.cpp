#include "vlmtrain/data/other_reading.h"

namespace vlmtrain::data {

bool is_of_passed_over_key(std::string_view message) {
  return message.find("data.ignore_keys") != std::string_view::npos;
}

std::string words_of_other_reading(std::string_view message) {
  if (!is_of_passed_over_key(message)) return {};
  return "; the run was begun by a version that passed over such keys: the key's name in data.ignore_keys reads the "
         "data as the run did until now";
}

}  // namespace vlmtrain::data
