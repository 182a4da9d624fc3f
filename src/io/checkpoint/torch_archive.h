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

/// The zip archive that torch.save writes: a pickle, data.pkl, and beside it the bytes of the storages that it names.
/// It makes tensors of them for the pickle. All calls throw a data_error where the archive is damaged.
class TorchArchive : public PickleResolver {
 public:
  /// data_error where the file cannot be read or is no such archive.
  explicit TorchArchive(const std::filesystem::path& path);
  ~TorchArchive() override;

  std::string read_pickle();  ///< data.pkl

  PickleValue call(const std::string& function, const PickleValue& arguments) override;
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
