#include "vlmtrain/data/other_reading.h"

namespace vlmtrain::data {

bool mentions_ignored_keys(std::string_view message) {
  return message.find("data.ignore_keys") != std::string_view::npos;
}

std::string explain_ignored_keys(std::string_view message) {
  if (!mentions_ignored_keys(message)) return {};
  return "; the run was begun by a version that passed over such keys: the key's name in data.ignore_keys reads the "
         "data as the run did until now";
}

}  // namespace vlmtrain::data
