#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace vlmtrain::models {

class BaseWeights;

/// A fingerprint of a checkpoint's weights, 16 hexadecimal digits: of names, shapes and data types of the tensors that
/// its model has, and of values of each: its first and last 256 bytes and two such pieces between them. So it tells
/// other weights from these, such as those of another version, another seed or a fine-tuning; a tensor that differs in
/// a few values between the pieces alone it does not. The same for the same weights in one file or in shards, of any
/// date and place. Reads a few pages of each tensor. Throws UserError (kBadData) for a folder that is no checkpoint.
std::string compute_base_fingerprint(const std::filesystem::path& folder);
std::string compute_base_fingerprint(const BaseWeights& base);

/// That of the base that an adapter was trained on: metadata of its adapter_model.safetensors. Nothing of adapters of
/// other programs and older versions.
std::optional<std::string> read_adapter_base_fingerprint(const std::filesystem::path& adapter);

/// Warns, in one line that names both, where the adapter was trained on other weights than `base` has. Returns whether
/// it did.
bool warn_on_base_mismatch(const std::filesystem::path& adapter, const std::filesystem::path& base);

/// The key of that metadata.
inline constexpr const char* kBaseFingerprintKey = "vlmtrain_base_fingerprint";

}  // namespace vlmtrain::models
