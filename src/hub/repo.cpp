#include "vlmtrain/hub/repo.h"

#include <algorithm>
#include <cctype>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::hub {

namespace {

constexpr std::string_view kScheme = "hf://";
constexpr std::string_view kDatasetScheme = "hf://datasets/";
/// Limit of the Hub.
constexpr size_t kMaxIdCharacters = 96;

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// The rules of huggingface_hub's validate_repo_id().
bool is_repo_id(std::string_view text) {
  const auto is_name = [](std::string_view name) {
    const auto is_allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
    const auto is_edge = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
    return !name.empty() && std::ranges::all_of(name, is_allowed) && is_edge(name.front()) && is_edge(name.back());
  };
  const size_t slash = text.find('/');
  return slash != std::string_view::npos && text.size() <= kMaxIdCharacters && is_name(text.substr(0, slash)) &&
         is_name(text.substr(slash + 1)) && text.find("--") == std::string_view::npos &&
         text.find("..") == std::string_view::npos && !text.ends_with(".git");
}

/// git's rules for branch names (git-check-ref-format), narrowed to what is safe as a path.
bool is_revision(std::string_view text) {
  constexpr size_t kMaxRevisionCharacters = 255;  // of a file name
  const auto is_allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-_./+#=").find(static_cast<char>(c)) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= kMaxRevisionCharacters && std::ranges::all_of(text, is_allowed) &&
         text.front() != '/' && text.back() != '/' && text.front() != '.' &&
         text.find("..") == std::string_view::npos && text.find("/.") == std::string_view::npos &&
         text.find("//") == std::string_view::npos;
}

/// Replaces %2F by slashes.
std::string decode_slashes(std::string text) {
  for (const char* code : {"%2F", "%2f"}) {
    for (size_t at = text.find(code); at != std::string::npos; at = text.find(code)) text.replace(at, 3, "/");
  }
  return text;
}

/// Parses ID[@REVISION]. Returns nothing if either is invalid.
std::optional<Repo> parse_repo(RepoType type, std::string_view text) {
  const size_t at = text.find('@');
  Repo repo{.type = type, .id = std::string(text.substr(0, at))};
  if (at != std::string_view::npos) repo.revision = decode_slashes(std::string(text.substr(at + 1)));
  if (!is_repo_id(repo.id) || !is_revision(repo.revision)) return std::nullopt;
  return repo;
}

/// Parses [hf://]ID[@REVISION]. Returns nothing if it is invalid.
std::optional<Repo> parse_model(std::string_view text) {
  if (!has_hub_scheme(text)) return parse_repo(RepoType::kModel, text);
  text.remove_prefix(kScheme.size());
  // Kinds of repositories in the URLs of the Hub.
  for (const std::string_view kind : {"models/", "datasets/", "spaces/", "buckets/"}) {
    if (text.starts_with(kind)) return std::nullopt;
  }
  return parse_repo(RepoType::kModel, text);
}

/// Returns a reference of the user for messages.
std::string quote(std::string_view text) {
  return text.empty() ? "\"\"" : make_excerpt(text);
}

}  // namespace

std::string Repo::to_string() const {
  std::string text = type == RepoType::kDataset ? std::string(kDatasetScheme) + id : id;
  return revision == kDefaultRevision ? text : text + "@" + revision;
}

bool is_commit(std::string_view revision) {
  constexpr size_t kCommitDigits = 40;
  return revision.size() == kCommitDigits && is_hex(revision);
}

bool has_hub_scheme(std::string_view text) {
  return text.starts_with(kScheme);
}

bool is_model_reference(std::string_view text) {
  return parse_model(text).has_value();
}

Repo parse_model_reference(std::string_view text) {
  auto repo = parse_model(text);
  if (!repo) {
    throw usage_error("{}: is not a model of the Hub; write ORG/NAME, ORG/NAME@REVISION or hf://ORG/NAME", quote(text));
  }
  return *std::move(repo);
}

bool is_dataset_reference(std::string_view text) {
  return text.starts_with(kDatasetScheme);
}

DatasetReference parse_dataset_reference(std::string_view text) {
  const auto fail = [&] {
    return usage_error("{}: is not a data set of the Hub; write hf://datasets/ORG/NAME[@REVISION][/CONFIG][:SPLIT]",
                       quote(text));
  };
  if (!is_dataset_reference(text)) throw fail();
  std::string_view rest = text.substr(kDatasetScheme.size());
  DatasetReference reference;
  if (const size_t colon = rest.rfind(':'); colon != std::string_view::npos) {
    reference.split = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
    if (reference.split.empty()) throw fail();
  }
  const size_t first_slash = rest.find('/');
  const size_t second_slash = first_slash == std::string_view::npos ? first_slash : rest.find('/', first_slash + 1);
  if (second_slash != std::string_view::npos) {
    reference.config = rest.substr(second_slash + 1);
    rest = rest.substr(0, second_slash);
    if (reference.config.empty()) throw fail();
  }
  auto repo = parse_repo(RepoType::kDataset, rest);
  if (!repo) throw fail();
  reference.repo = *std::move(repo);
  return reference;
}

}  // namespace vlmtrain::hub
