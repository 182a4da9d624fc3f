#include "models/registry.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "models/idefics3/family.h"
#include "models/llava/family.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

/// A new family is a folder and a line here.
const std::vector<Family>& families() {
  static const std::vector<Family> table{idefics3::family(), llava::family()};
  return table;
}

}  // namespace

const Family& family_of(const nlohmann::json& config, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  const auto type = io::get<std::string>(config, "model_type", source);
  std::vector<std::string_view> known;
  for (const Family& family : families()) {
    if (std::find(family.model_types.begin(), family.model_types.end(), type) != family.model_types.end())
      return family;
    known.insert(known.end(), family.model_types.begin(), family.model_types.end());
  }
  throw data_error("{}: model_type {} is not a family that vlmtrain knows; the known ones are {}", source, type,
                   fmt::join(known, ", "));
}

}  // namespace vlmtrain::models
