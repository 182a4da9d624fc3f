#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "io/checkpoint/unpickler.h"

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace vlmtrain::io {

/// A zip archive written by torch.save: a pickle, data.pkl, and the bytes of the storages that the
/// pickle refers to. Rebuilds the tensors for the Unpickler. All functions throw data_error that
/// names the file if the archive is damaged. Not thread-safe.
class TorchArchive : public PickleResolver {
 public:
  /// Maps the file. Throws data_error if it cannot be read or is not a zip archive.
  explicit TorchArchive(const std::filesystem::path& path);
  ~TorchArchive() override;

  /// Returns the content of data.pkl. Throws data_error if it is missing or if the file was written
  /// on a big-endian machine.
  std::string read_pickle();

  /// Rebuilds tensors, parameters and ordered dicts. Returns a kOpaque for other functions.
  PickleValue call_function(const std::string& function, const PickleValue& arguments) override;
  /// Returns the storage that `id` names as a kStorage, or a kOpaque for an unknown storage class.
  PickleValue persistent_load(const PickleValue& id) override;

 private:
  [[noreturn]] void fail(std::string_view reason) const;
  template <class Read>
  auto read_or_throw(const Read& read) const;
  const c10::Storage& load_storage(const std::string& key);
  PickleValue rebuild_tensor(const PickleValue& arguments) const;

  std::string source_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  std::map<std::string, c10::Storage> storage_by_key_;  // shared by their tensors
};

}  // namespace vlmtrain::io
