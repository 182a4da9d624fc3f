#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::models {

/// A tensor of a file.
struct StoredTensor {
  std::vector<int64_t> shape;
  at::ScalarType dtype;
  std::function<at::Tensor()> read;
  std::function<void()> release = {};  ///< gives the file's pages back; may be empty
};

/// What an error says of a place that holds no such weights.
struct TensorSourceMessages {
  std::string not_found;    ///< "is no mask model; give …"
  std::string choose_file;  ///< what to name where a folder has several files: "give the file of SAM itself"
};

/// The weights of a model that others have trained, by name. Those of a .pt or .pth file are in memory, others are read
/// one at a time.
class TensorSource {
 public:
  /// `path`: a folder with config.json and model.safetensors, or shards of it; a file .safetensors, .pt or .pth; a
  /// folder with one such file. Throws UserError (kBadData) where it is none of these, or damaged.
  TensorSource(const std::filesystem::path& path, const TensorSourceMessages& messages);

  const std::filesystem::path& path() const { return path_; }
  /// Where a config.json would lie.
  std::filesystem::path folder() const;
  const std::map<std::string, StoredTensor>& all() const { return tensors_; }
  /// Null where there is no such tensor.
  const StoredTensor* find(const std::string& name) const;
  bool has_prefix(std::string_view prefix) const;

 private:
  template <class File>
  void add_tensors(File file);

  std::filesystem::path path_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace vlmtrain::models
