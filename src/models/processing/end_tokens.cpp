#include "vlmtrain/models/end_tokens.h"

#include <algorithm>

#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::models {

std::vector<int64_t> end_token_ids(const std::filesystem::path& folder, const Processor& processor) {
  if (is_adapter(folder)) return end_token_ids(base_of_adapter(folder), processor);
  std::vector<int64_t> ids{processor.end_of_turn_id()};
  const auto file = folder / "generation_config.json";
  if (!std::filesystem::exists(file)) return ids;
  const auto config = io::read_json(file);
  const char* const key = "eos_token_id";
  std::vector<int64_t> listed;
  if (config.is_object() && config.contains(key) && config[key].is_array()) {
    listed = io::get<std::vector<int64_t>>(config, key, file.string());
  } else {
    listed = {io::get_or<int64_t>(config, key, ids.front(), file.string())};
  }
  for (const int64_t id : listed) {
    if (std::ranges::count(ids, id) == 0) ids.push_back(id);
  }
  return ids;
}

}  // namespace vlmtrain::models
