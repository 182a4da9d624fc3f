#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::hub {

enum class RepoType { kModel, kDataset };

/// The revision of references without one.
inline constexpr std::string_view kDefaultRevision = "main";

/// A revision of a repository on the Hugging Face Hub.
struct Repo {
  RepoType type = RepoType::kModel;
  std::string id{};                        ///< "ORG/NAME"
  std::string revision{kDefaultRevision};  ///< a branch, a tag or a commit

  /// Returns the reference as users write it, without the default revision: "ORG/NAME@v1",
  /// "hf://datasets/ORG/NAME".
  std::string to_string() const;

  bool operator==(const Repo&) const = default;
};

/// Samples of a data set on the Hub: hf://datasets/ORG/NAME[@REVISION][/CONFIG][:SPLIT].
struct DatasetReference {
  Repo repo;
  std::string config{};  ///< name of a configuration; empty: the default one
  std::string split{};   ///< empty: train

  bool operator==(const DatasetReference&) const = default;
};

/// Returns true for a commit: 40 hexadecimal digits in lower case.
bool is_commit(std::string_view revision);

/// Returns true if `text` begins with "hf://".
bool has_hub_scheme(std::string_view text);

/// Returns true if `text` has the form of a reference to a model: ORG/NAME, ORG/NAME@REVISION, or
/// either after "hf://". Does not access files or the network.
bool is_model_reference(std::string_view text);

/// Parses a reference to a model. Throws UserError (kUsage) if is_model_reference(text) is false.
Repo parse_model_reference(std::string_view text);

/// Returns true if `text` begins with "hf://datasets/".
bool is_dataset_reference(std::string_view text);

/// Parses a reference to a data set. A revision with slashes is written with %2F. Throws UserError
/// (kUsage) for other texts.
DatasetReference parse_dataset_reference(std::string_view text);

}  // namespace vlmtrain::hub
