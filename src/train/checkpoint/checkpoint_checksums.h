#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "vlmtrain/io/checksums.h"

namespace vlmtrain::train {

/// Checksums by path within a checkpoint's folder, for example "trainer_state/state.json".
using CheckpointChecksums = std::map<std::string, io::Checksum>;

/// Returns the checksums that `recorder` has for files within `folder`.
CheckpointChecksums collect_checksums(const std::filesystem::path& folder, const io::ChecksumRecorder& recorder);

/// Returns the content of trainer_state/checksums.json: {"algorithm": "XXH64", "files": {name:
/// {"bytes", "xxh64"}}}.
std::string to_json_text(const CheckpointChecksums& checksums);

/// Parses the output of to_json_text(). Throws UserError (kBadData), with `source`, for other text.
CheckpointChecksums parse_checksums(const std::string& text, const std::string& source);

/// Writes trainer_state/checksums.json of `checkpoint`.
void write_checksums(const std::filesystem::path& checkpoint, const CheckpointChecksums& checksums);

/// Returns the checksums of a checkpoint; nullopt for one of an older version, which has none.
std::optional<CheckpointChecksums> read_checksums(const std::filesystem::path& checkpoint);

/// The files whose contents are compared with their checksums.
enum class VerifiedFiles {
  kSmall,  ///< the sizes of all files, and the contents of small ones: JSON, templates
  kAll,    ///< all contents; reads every file once, several at a time
  /// The *.safetensors files of a model or an adapter. A file that another program has replaced by
  /// one of another size is a warning.
  kModelWeights,
};

/// Throws UserError (kBadData), with file and advice, if a file is missing or differs from its
/// checksum. Returns whether the checkpoint has checksums.
bool verify_checksums(const std::filesystem::path& checkpoint, VerifiedFiles scope);

}  // namespace vlmtrain::train
