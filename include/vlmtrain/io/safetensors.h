#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vlmtrain::io {

class MappedFile;

/// What a safetensors header says of a tensor.
struct TensorInfo {
  c10::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t offset_bytes;  ///< from the start of the file
  int64_t size_bytes;
};

/// A safetensors file, mapped into memory: 8 bytes little-endian header length, a JSON header, the tensors' data
/// (https://github.com/huggingface/safetensors#format).
///
/// The whole header is checked when the file is opened: a data_error names file, tensor and remedy where it lies about
/// lengths, types, shapes or offsets. Safe to use from several threads. The file must not be truncated while it is in
/// use; to replace it by renaming, as AtomicFile does, is safe.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  /// In the order of the data in the file.
  const std::vector<std::string>& names() const { return names_; }
  /// The header's "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  bool contains(const std::string& name) const { return tensors_.contains(name); }
  /// data_error where there is no such tensor; so for the three below.
  const TensorInfo& info(const std::string& name) const;
  c10::ScalarType dtype(const std::string& name) const { return info(name).dtype; }
  const std::vector<int64_t>& shape(const std::string& name) const { return info(name).shape; }

  /// A CPU tensor over the mapped file, without a copy; it keeps the mapping alive. The mapping is private: writing to
  /// the tensor changes this process's pages, never the file. Data that is not aligned to its type is copied.
  at::Tensor tensor(const std::string& name) const;
  /// Gives the memory of a tensor's pages back to the system: for those who have copied it. What was written to it is
  /// lost; who reads it again reads the file.
  void release(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> file_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes tensors of any device and stride, atomically and flushed to the disk (io/atomic.h). They are brought to the
/// host one after the other, so that host memory grows by about the largest one. As the reference implementation does,
/// those with the widest elements come first, then by name, so that all data is aligned.
/// REQUIRES: names are unique; types are those of the format. run_error where the disk is full or cannot be written.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace vlmtrain::io
