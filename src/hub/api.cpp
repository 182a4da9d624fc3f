#include "hub/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::hub {

namespace {

/// Returns the text for a part of a URL's path (RFC 3986). Keeps slashes if `keeps_slashes`.
std::string encode_for_url(std::string_view text, bool keeps_slashes) {
  std::string result;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) != 0 || std::string_view("-._~").find(letter) != std::string_view::npos ||
        (letter == '/' && keeps_slashes)) {
      result += letter;
    } else {
      result += fmt::format("%{:02X}", byte);
    }
  }
  return result;
}

std::string make_api_url(const HubSettings& settings, const Repo& repo, std::string_view function,
                         const std::string& revision) {
  return fmt::format("{}/api/{}/{}/{}/{}", settings.endpoint, repo.type == RepoType::kDataset ? "datasets" : "models",
                     repo.id, function, encode_for_url(revision, /*keeps_slashes=*/false));
}

bool is_hex_of_length(const std::string& text, size_t digits) {
  return text.size() == digits &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// Returns the URL of the next page in a Link header (RFC 8288), or "".
std::string find_next_page(const std::string& links) {
  const size_t end = links.find(">; rel=\"next\"");
  if (end == std::string::npos) return "";
  const size_t begin = links.rfind('<', end);
  return begin == std::string::npos ? "" : links.substr(begin + 1, end - begin - 1);
}

RepoFile parse_file(const nlohmann::json& entry, const std::string& source) {
  RepoFile file{.path = io::get<std::string>(entry, "path", source),
                .size = io::get<int64_t>(entry, "size", source),
                .blob_id = io::get<std::string>(entry, "oid", source)};
  if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
    file.lfs_sha256 = io::get<std::string>(*lfs, "oid", source);
    file.size = io::get<int64_t>(*lfs, "size", source);
  }
  file.xet_hash = io::get_or<std::string>(entry, "xetHash", "", source);
  return file;
}

/// Returns the result of `parse`. Its UserError becomes one that names the likely cause.
template <class Function>
auto parse_answer(const Repo& repo, const std::string& url, const Function& parse) {
  try {
    return parse();
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kBadData) throw;
    throw run_error(
        "{}: the answer of {} is not that of a Hub; check HF_ENDPOINT and HTTPS_PROXY, and whether the "
        "network asks for a login in a browser",
        repo.to_string(), url);
  }
}

}  // namespace

bool is_safe_path(const std::string& path) {
  if (path.empty() || path.back() == '/') return false;
  if (std::ranges::any_of(path, [](unsigned char c) { return c < ' ' || c == 127; })) return false;
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view component = std::string_view(path).substr(begin, end - begin);
    if (component.empty() || component == "." || component == "..") return false;
    begin = end + 1;
  }
  return true;
}

void check_repo_file(const RepoFile& file, const std::string& source) {
  constexpr size_t kSha1Digits = 40, kSha256Digits = 64;
  const auto fail = [&](const char* what) {
    return run_error("{}: the Hub lists {} with {}; report it to the Hub", source, make_excerpt(file.path), what);
  };
  if (!is_safe_path(file.path)) throw fail("a name that is not a relative path");
  constexpr int64_t kMaxFileBytes = int64_t{1} << 44U;  // 30 times the Hub's limit; sums do not overflow
  if (file.size < 0 || file.size > kMaxFileBytes) throw fail("an impossible size");
  if (!is_hex_of_length(file.blob_id, kSha1Digits)) throw fail("an invalid git hash");
  if (!file.lfs_sha256.empty() && !is_hex_of_length(file.lfs_sha256, kSha256Digits)) throw fail("an invalid SHA-256");
}

std::string resolve_commit(HubConnection& connection, const Repo& repo) {
  HttpResponse response;
  const std::string url = make_api_url(connection.settings(), repo, "revision", repo.revision);
  const std::string text = connection.get_text(url, repo, response);
  auto commit = parse_answer(repo, url, [&] { return io::get<std::string>(io::parse_json(text, url), "sha", url); });
  if (!is_commit(commit))
    throw run_error("{}: the commit {} is invalid; report it to the Hub", url, make_excerpt(commit));
  return commit;
}

std::vector<RepoFile> list_files(HubConnection& connection, const Repo& repo, const std::string& commit) {
  std::vector<RepoFile> files;
  std::string url = make_api_url(connection.settings(), repo, "tree", commit) + "?recursive=True&expand=False";
  std::set<std::string> urls;
  constexpr size_t kMaxPages = 10'000;  // of 1,000 files each
  while (!url.empty()) {
    if (!urls.insert(url).second || urls.size() > kMaxPages) {
      throw run_error("{}: the list of files does not end; check HF_ENDPOINT and proxies, or report it to the Hub",
                      repo.to_string());
    }
    HttpResponse response;
    const std::string text = connection.get_text(url, repo, response);
    parse_answer(repo, url, [&] {
      const auto entries = io::parse_json(text, url);
      if (!entries.is_array()) throw data_error("{}: is not a list of files", url);
      for (const auto& entry : entries) {
        if (io::get<std::string>(entry, "type", url) == "file") files.push_back(parse_file(entry, url));
      }
    });
    url = find_next_page(response.header("link"));
  }
  for (const RepoFile& file : files) check_repo_file(file, repo.to_string());
  return files;
}

std::string make_file_url(const HubSettings& settings, const Repo& repo, const std::string& commit,
                          const std::string& path) {
  return fmt::format("{}/{}{}/resolve/{}/{}", settings.endpoint, repo.type == RepoType::kDataset ? "datasets/" : "",
                     repo.id, commit, encode_for_url(path, /*keeps_slashes=*/true));
}

}  // namespace vlmtrain::hub
