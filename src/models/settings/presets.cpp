#include "models/presets.h"

#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

std::vector<std::string> list_presets() {
  std::vector<std::string> names;
  for (const auto& [path, content] : resources()) {
    std::string name = path.substr(0, path.find('/'));
    if (names.empty() || names.back() != name) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace vlmtrain::models
