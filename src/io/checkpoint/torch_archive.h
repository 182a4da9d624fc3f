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

/// The zip archive of torch.save: a pickle, data.pkl, and the bytes of the storages that the pickle
/// refers to. Makes the tensors for the Unpickler. All functions throw data_error if the archive is
/// damaged.
class TorchArchive : public PickleResolver {
 public:
  /// Throws data_error if the file cannot be read or is not such an archive.
  explicit TorchArchive(const std::filesystem::path& path);
  ~TorchArchive() override;

  std::string read_pickle();  ///< returns data.pkl

  /// Rebuilds tensors and ordered dicts; returns a kOpaque for other functions.
  PickleValue call(const std::string& function, const PickleValue& arguments) override;
  /// Returns the storage that `id` names, or a kOpaque for an unknown type of storage.
  PickleValue persistent_load(const PickleValue& id) override;

 private:
  [[noreturn]] void fail(std::string_view reason) const;
  template <class Read>
  auto translate_errors(const Read& read) const;
  const c10::Storage& load_storage(const std::string& key);
  PickleValue rebuild_tensor(const PickleValue& arguments) const;

  std::string source_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  std::map<std::string, c10::Storage> storages_;
};

}  // namespace vlmtrain::io
