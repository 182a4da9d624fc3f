#include "vlmtrain/models/base_fingerprint.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "models/adapters/adapter_layout.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/weights_to_save.h"

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

std::string base_fingerprint(const BaseWeights& base) {
  ContentHash hash;
  for (const auto& tensors : base.opened()) add_tensors(hash, *tensors);
  return hash.text();
}

std::string base_fingerprint(const std::filesystem::path& folder) {
  return base_fingerprint(BaseWeights(folder));
}

std::optional<std::string> fingerprint_of_adapters_base(const std::filesystem::path& adapter) {
  const auto tensors = open_adapter(adapter);
  const auto found = tensors.metadata().find(kBaseFingerprintKey);
  return found == tensors.metadata().end() ? std::nullopt : std::optional(found->second);
}

bool warn_of_other_base(const std::filesystem::path& adapter, const std::filesystem::path& base) {
  const auto trained_on = fingerprint_of_adapters_base(adapter);
  if (!trained_on) return false;
  const std::string found = base_fingerprint(base);
  if (found == *trained_on) return false;
  spdlog::warn(
      "{}: the adapter was trained on other weights than {} has (their fingerprints are {} and {}), so the two "
      "together are not the model that was trained; give the base that it was trained on",
      adapter.string(), base.string(), *trained_on, found);
  return true;
}

}  // namespace vlmtrain::models
