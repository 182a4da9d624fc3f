#include "vlmtrain/models/end_tokens.h"

#include <algorithm>

#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/text/checkpoint_templates.h"

namespace vlmtrain::models {

std::vector<int64_t> load_eos_token_ids(const std::filesystem::path& folder, const Processor& processor,
                                        const std::filesystem::path& adapter) {
  constexpr const char* kGeneration = "generation_config.json";
  if (adapter.empty() && is_adapter(folder)) {
    const bool has_config = std::filesystem::exists(folder / kGeneration);
    return load_eos_token_ids(has_config ? folder : find_adapter_base(folder), processor, folder);
  }
  std::vector<int64_t> ids{processor.end_of_turn_id()};
  const bool use_adapter = !adapter.empty() && std::filesystem::exists(adapter / kGeneration);
  const auto file = (use_adapter ? adapter : folder) / kGeneration;
  if (!std::filesystem::exists(file)) return ids;
  for (const int64_t id : text::parse_eos_token_ids(io::read_json(file), file.string())) {
    if (std::ranges::count(ids, id) == 0) ids.push_back(id);
  }
  return ids;
}

}  // namespace vlmtrain::models
