#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "vlmtrain/io/checksums.h"

namespace vlmtrain::train {

/// By the paths within a checkpoint's folder, such as "trainer_state/state.json".
using CheckpointChecksums = std::map<std::string, io::Checksum>;

/// Of the files that were recorded within `folder`.
CheckpointChecksums collect_checksums(const std::filesystem::path& folder, const io::ChecksumRecorder& recorder);

/// As trainer_state/checksums.json has them: {"algorithm": "XXH64", "files": {name: {"bytes", "xxh64"}}}.
std::string to_json_text(const CheckpointChecksums& checksums);
/// Throws UserError (kBadData), which names `source`, where the text is not what to_json_text() makes.
CheckpointChecksums parse_checksums(const std::string& text, const std::string& source);

/// Writes trainer_state/checksums.json of `checkpoint`.
void write_checksums(const std::filesystem::path& checkpoint, const CheckpointChecksums& checksums);
/// Nothing of a checkpoint without them, as older versions wrote.
std::optional<CheckpointChecksums> read_checksums(const std::filesystem::path& checkpoint);

/// What of a checkpoint's files is compared with their checksums.
enum class VerifiedFiles {
  kSmall,  ///< the sizes of all, and the contents of those that are read whole: JSON, templates
  kAll,    ///< all contents; reads every file once, several at a time
  /// The contents of *.safetensors that a model or an adapter is made of. One that another program has written again,
  /// in another size, is a warning.
  kModelWeights,
};

/// Throws UserError (kBadData), which names the file and the remedy, where one is missing or is not as it was saved.
/// Returns whether the checkpoint has checksums.
bool verify_checksums(const std::filesystem::path& checkpoint, VerifiedFiles scope);

}  // namespace vlmtrain::train
