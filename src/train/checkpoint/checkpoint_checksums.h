#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "vlmtrain/io/atomic.h"

namespace vlmtrain::train {

/// Checksums by path relative to a checkpoint's folder, for example "trainer_state/state.json".
using CheckpointChecksums = std::map<std::string, io::Checksum>;

/// Returns the checksums of the files that were written into `folder` during the life of
/// `recorder`.
CheckpointChecksums collect_checksums(const std::filesystem::path& folder, const io::ChecksumRecorder& recorder);

/// Returns the text of trainer_state/checksums.json: {"algorithm": "XXH64", "files": {path:
/// {"bytes": size, "xxh64": 16 hexadecimal digits}}}.
std::string format_checksums(const CheckpointChecksums& checksums);

/// Parses the output of format_checksums(). Throws UserError (kBadData), with `source`, for other
/// text.
CheckpointChecksums parse_checksums(const std::string& text, const std::string& source);

/// Writes trainer_state/checksums.json of `checkpoint`.
void write_checksums(const std::filesystem::path& checkpoint, const CheckpointChecksums& checksums);

/// Returns the checksums of a checkpoint; nullopt if it has none, like those of older versions.
/// Throws UserError (kBadData) for an invalid file.
std::optional<CheckpointChecksums> read_checksums(const std::filesystem::path& checkpoint);

/// The files whose contents are compared with their checksums.
enum class ChecksumVerificationScope {
  kSmallFiles,  ///< the sizes of all files, and the contents of small ones: JSON, templates
  kAllFiles,    ///< all contents; reads every file once, several at a time
  /// The contents of the model's or adapter's *.safetensors files. A missing file or one of another
  /// size is only a warning, because another program has replaced or removed it.
  kModelWeights,
};

/// Throws UserError (kBadData), with file and advice, if a file is missing or differs from its
/// checksum. Returns whether the checkpoint has checksums.
bool verify_checksums(const std::filesystem::path& checkpoint, ChecksumVerificationScope scope);

}  // namespace vlmtrain::train
