#pragma once

#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::hub {

/// A configuration of a data set in the metadata of README.md.
struct DatasetConfig {
  std::string name{};
  bool is_default = false;
  std::string folder{};  ///< data_dir; empty: the repository
  /// Patterns of each split, relative to the folder; empty: by the names of the files.
  std::vector<std::pair<std::string, std::vector<std::string>>> splits{};
};

/// Reads the configurations in the YAML block at the start of README.md
/// (https://huggingface.co/docs/hub/datasets-manual-configuration). Returns an empty list if there
/// are none. Throws data_error that names `source` for invalid YAML.
std::vector<DatasetConfig> parse_dataset_configs(const std::string& readme, const std::string& source);

}  // namespace vlmtrain::hub
