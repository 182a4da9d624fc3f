#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::io {

class MappedFile;

/// The entry of a tensor in a safetensors header.
struct TensorInfo {
  c10::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t offset_bytes;  ///< of the data, from the start of the file
  int64_t size_bytes;    ///< of the data
};

/// A memory-mapped safetensors file: an 8-byte little-endian header length, a JSON header, and the
/// tensors' data (https://github.com/huggingface/safetensors#format).
///
/// Thread-safe. The file must not be truncated while it is in use. Replacing it by renaming, as
/// AtomicFile does, is safe.
class SafetensorsFile {
 public:
  /// Checks the whole header. Throws data_error that names file and tensor if lengths, dtypes,
  /// shapes or offsets are invalid.
  explicit SafetensorsFile(std::filesystem::path path);

  /// Returns the path that was given to the constructor.
  const std::filesystem::path& path() const { return path_; }
  /// Returns the names in the order of the data in the file.
  const std::vector<std::string>& names() const { return names_; }
  /// Returns the "__metadata__" of the header; empty if the header has none.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  bool contains(const std::string& name) const { return tensor_infos_.contains(name); }
  // The functions below throw data_error if the file has no tensor `name`.
  const TensorInfo& info(const std::string& name) const;
  c10::ScalarType dtype(const std::string& name) const { return info(name).dtype; }
  const std::vector<int64_t>& shape(const std::string& name) const { return info(name).shape; }

  /// Returns a contiguous CPU tensor that shares the mapped memory and keeps the mapping alive. The
  /// mapping is private: writing to the tensor changes pages of this process, never the file. Data
  /// that is not aligned to its dtype is copied.
  at::Tensor tensor(const std::string& name) const;
  /// Returns the tensor's pages to the system. Call it after copying the tensor. Changes to the
  /// tensor are lost, and another access reads the file again.
  void release(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> file_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, TensorInfo> tensor_infos_;
  std::map<std::string, std::string> metadata_;
};

/// A safetensors file that maps each tensor separately, as long as the tensor exists. With a limit
/// on the address space (`ulimit -v`), reading tensors one by one needs only the size of the
/// largest. The header is checked as by SafetensorsFile. Thread-safe.
class OnDemandSafetensorsFile {
 public:
  /// Reads and checks the header. Throws as SafetensorsFile does.
  explicit OnDemandSafetensorsFile(std::filesystem::path path);

  /// Returns the names in the order of the data in the file.
  const std::vector<std::string>& names() const { return names_; }
  // The functions below throw data_error if the file has no tensor `name`.
  const TensorInfo& info(const std::string& name) const;
  /// Returns a tensor as SafetensorsFile::tensor() does. Each call creates a new mapping.
  at::Tensor tensor(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, TensorInfo> tensor_infos_;
};

/// Names and tensors, in the order of a file.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A tensor that is computed when it is written, so that only one tensor at a time needs host
/// memory.
struct LazyTensor {
  std::string name;
  c10::ScalarType dtype;
  std::vector<int64_t> shape;
  std::function<at::Tensor()> materialize;  ///< returns a tensor of this dtype and shape on any device; called once
  std::function<void()> on_written = {};    ///< called once after the tensor is written; may be empty

  /// Returns the size of the data.
  int64_t bytes() const;
};

using LazyTensors = std::vector<LazyTensor>;

/// Wraps existing tensors. The reference to a tensor is dropped after it is written.
LazyTensors make_lazy_tensors(const NamedTensors& tensors);

/// Writes dense tensors with any device and strides to a file, atomically (io/atomic.h). Tensors
/// are copied to the host one by one, so host memory grows by about the size of the largest one. In
/// the file, tensors are sorted by element size, largest first, then by name, as in the reference
/// implementation, so that all data is aligned. Throws run_error if the file cannot be written.
/// REQUIRES: names are unique; the format supports the dtypes (to_safetensors_dtype).
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// Same for lazy tensors.
void write_safetensors(const std::filesystem::path& path, const LazyTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// Returns the safetensors name of a dtype, such as "BF16" or "I32". REQUIRES: the format supports
/// the dtype.
std::string_view to_safetensors_dtype(c10::ScalarType dtype);

}  // namespace vlmtrain::io
