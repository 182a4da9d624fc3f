#include "vlmtrain/models/base_weights.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "models/adapters/adapter_format.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/checkpoint_contents.h"

namespace vlmtrain::models {

namespace {

constexpr size_t kPieces = 4;
constexpr size_t kPieceBytes = 256;

void add_values(ContentHash& hash, const at::Tensor& tensor) {
  const std::string_view bytes(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  if (bytes.size() <= kPieces * kPieceBytes) {
    hash.add(bytes);
    return;
  }
  for (size_t piece = 0; piece < kPieces; ++piece) {
    hash.add(bytes.substr((bytes.size() - kPieceBytes) / (kPieces - 1) * piece, kPieceBytes));
  }
}

void add_tensors(ContentHash& hash, const io::CheckpointTensors& tensors) {
  auto names = tensors.names();
  std::ranges::sort(names);
  for (const auto& name : names) {
    const io::TensorInfo& info = tensors.info(name);
    hash.add(name).add(c10::toString(info.dtype)).add(info.shape.size());
    for (const int64_t size : info.shape) hash.add(static_cast<uint64_t>(size));
    add_values(hash, tensors.tensor(name));
    tensors.release(name);  // the pages around the pieces count as this process's memory
  }
}

}  // namespace

std::string compute_base_fingerprint(const BaseWeights& base) {
  ContentHash hash;
  for (const auto& tensors : base.tensor_files()) add_tensors(hash, *tensors);
  return hash.hex();
}

std::string compute_base_fingerprint(const std::filesystem::path& folder) {
  return compute_base_fingerprint(BaseWeights(folder));
}

std::optional<std::string> read_adapter_base_fingerprint(const std::filesystem::path& adapter) {
  const auto tensors = open_adapter(adapter);
  const auto it = tensors.metadata().find(kBaseFingerprintKey);
  return it == tensors.metadata().end() ? std::nullopt : std::optional(it->second);
}

bool warn_on_base_mismatch(const std::filesystem::path& adapter, const std::filesystem::path& base) {
  const auto expected = read_adapter_base_fingerprint(adapter);
  if (!expected) return false;
  const std::string actual = compute_base_fingerprint(base);
  if (actual == *expected) return false;
  spdlog::warn(
      "{}: the adapter was trained on other weights than {} has (their fingerprints are {} and {}), so the two "
      "together are not the model that was trained; give the base that it was trained on",
      adapter.string(), base.string(), *expected, actual);
  return true;
}

}  // namespace vlmtrain::models
