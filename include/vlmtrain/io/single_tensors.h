#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

/// The tensors of a safetensors file, each mapped by itself for as long as it lives: where address space is limited
/// (`ulimit -v`), a file counts by its largest tensor. The header is read and checked as SafetensorsFile does. Safe to
/// use from several threads.
class OnDemandSafetensors {
 public:
  explicit OnDemandSafetensors(std::filesystem::path path);

  /// In the order of the data in the file.
  const std::vector<std::string>& names() const { return names_; }
  /// data_error where there is no such tensor; so for the next.
  const TensorInfo& info(const std::string& name) const;
  /// As SafetensorsFile::tensor().
  at::Tensor tensor(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, TensorInfo> tensors_;
};

}  // namespace vlmtrain::io
