#include "hub/connection.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>

#include "vlmtrain/base/process.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::hub {

namespace {

/// Redirects of one request. The Hub needs two: a renamed repository, then the storage.
constexpr int kMaxRedirects = 10;
/// Longest answer of the API that is read. A list of 1,000 files has 0.3 MB.
constexpr size_t kMaxTextBytes = size_t{64} << 20U;

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

HttpResponse make_failure(HttpResponse response, std::string problem) {
  response.error = TransferError::kOther;
  response.problem = std::move(problem);
  return response;
}

/// Returns what a failed transfer needs.
std::string describe_fix(const HubSettings& settings, const HttpResponse& response) {
  switch (response.error) {
    case TransferError::kTls:
      return settings.ca_bundle.empty()
                 ? "no certificates were found on this machine; set SSL_CERT_FILE to a CA bundle"
                 : fmt::format("check the certificates in {} (SSL_CERT_FILE)", settings.ca_bundle);
    case TransferError::kResolve:
    case TransferError::kConnect:
    case TransferError::kTimeout:
      return "check the network and HTTPS_PROXY, or run `vlmtrain download` on a machine with network and share "
             "HF_HUB_CACHE";
    default:
      return "run the same command again; downloads continue where they ended";
  }
}

}  // namespace

const HttpLibrary& get_http_library() {
  static const HttpLibrary* const library = [] {
    const Plugin plugin =
        load_plugin(kHttpPluginLibrary, kHttpPluginVersionSymbol, kHttpPluginVersion, {kGetHttpLibrarySymbol});
    if (plugin.functions.empty())
      throw run_error("{}; without it, models are read from folders and the cache only", plugin.problem);
    return reinterpret_cast<GetHttpLibraryFunction>(plugin.functions[0])();
  }();
  return *library;
}

bool is_temporary_failure(const HttpResponse& response) {
  switch (response.error) {
    case TransferError::kConnect:
    case TransferError::kTimeout:
    case TransferError::kInterrupted:
      return true;
    case TransferError::kNone:
      break;
    default:
      return false;
  }
  constexpr int kTemporaryStatuses[] = {408, 429, 500, 502, 503, 504};
  return std::ranges::find(kTemporaryStatuses, response.status) != std::end(kTemporaryStatuses);
}

void wait_before_retry(const HubSettings& settings, const HttpResponse& response, int attempt) {
  constexpr double kMaxRequestedSeconds = 60;
  constexpr int kMaxDoublings = 3;
  const auto requested = parse_int_after_prefix("", response.header("retry-after"));
  const double seconds = requested ? std::clamp<double>(static_cast<double>(*requested), 0, kMaxRequestedSeconds)
                                   : settings.retry_seconds * (1 << std::min(attempt - 1, kMaxDoublings));
  constexpr double kLongPauseSeconds = 10;  // not tuned
  if (seconds > kLongPauseSeconds) spdlog::warn("{}: asks for a pause of {:.0f} s", settings.endpoint, seconds);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

UserError make_hub_error(const HubSettings& settings, const Repo& repo, const std::string& subject,
                         const HttpResponse& response) {
  if (response.error != TransferError::kNone) {
    // A model may be a folder that the user expected on this machine.
    const bool may_be_folder = repo.type == RepoType::kModel && subject == repo.to_string();
    return run_error("{}: {}cannot be downloaded from {}: {}; {}", subject,
                     may_be_folder ? "not a folder on this machine, and " : "", settings.endpoint, response.problem,
                     describe_fix(settings, response));
  }
  // https://github.com/huggingface/huggingface_hub, hf_raise_for_status()
  const std::string code = response.header("x-error-code");
  const std::string page =
      fmt::format("{}/{}{}", settings.endpoint, repo.type == RepoType::kDataset ? "datasets/" : "", repo.id);
  const bool has_token = !settings.token.empty();
  if (code == "GatedRepo") {
    return usage_error("{}: access is restricted; accept the conditions at {}{}", subject, page,
                       has_token ? fmt::format(" with the account of the token in {}", settings.token_source)
                                 : std::string(", then set HF_TOKEN to a token of that account"));
  }
  if (response.header("x-error-message").starts_with("Invalid credentials") ||
      (response.status == 401 && has_token && code.empty())) {
    return usage_error("{}: the Hub rejects the token in {}; create another at {}/settings/tokens, or unset it",
                       subject, settings.token_source, settings.endpoint);
  }
  if (code == "RevisionNotFound")
    return usage_error("{}: has no revision {}; the branches and tags are at {}", repo.id, repo.revision, page);
  if (code == "EntryNotFound") return run_error("{}: is not in the repository; see {}", subject, page);
  if (code == "RepoNotFound" || response.status == 401 || response.status == 404) {
    return usage_error("{}: is neither a folder nor a repository at {}{}", subject, settings.endpoint,
                       has_token ? fmt::format(" that the token in {} may read; check the name", settings.token_source)
                                 : std::string("; check the name, or set HF_TOKEN if it is private"));
  }
  return run_error("{}: {} answers with status {}{}; run the same command again later", subject, settings.endpoint,
                   response.status,
                   response.header("x-error-message").empty()
                       ? ""
                       : fmt::format(" ({})", make_excerpt(response.header("x-error-message"))));
}

HubConnection::HubConnection(const HubSettings& settings)
    : settings_(settings), library_(get_http_library()), client_(library_.make_client(settings.ca_bundle)) {
  const auto endpoint = library_.resolve_url(settings.endpoint, settings.endpoint);
  if (!endpoint) throw usage_error("HF_ENDPOINT: {} is not a URL; write https://HOST", settings.endpoint);
  endpoint_origin_ = endpoint->origin;
}

HttpResponse HubConnection::get(const std::string& url, const std::vector<std::string>& headers, const BodySink& sink) {
  auto target = library_.resolve_url(url, url);
  if (!target) return make_failure({}, url + " is not a URL");
  for (int redirects = 0;; ++redirects) {
    HttpRequest request{.url = target->text, .headers = headers, .timeout_seconds = settings_.timeout_seconds};
    request.headers.emplace_back("User-Agent: vlmtrain");
    if (!settings_.token.empty() && target->origin == endpoint_origin_)
      request.headers.push_back("Authorization: Bearer " + settings_.token);
    HttpResponse response = client_->get(request, [&](const HttpResponse& head, std::string_view bytes) {
      return is_redirect(head.status) || sink(head, bytes);
    });
    if (response.error != TransferError::kNone || !is_redirect(response.status)) return response;
    if (redirects == kMaxRedirects) return make_failure(response, fmt::format("more than {} redirects", kMaxRedirects));
    const bool is_encrypted = target->text.starts_with("https:");
    const std::string location = response.header("location");
    target = library_.resolve_url(target->text, location);
    if (location.empty() || !target) return make_failure(response, "a redirect without a valid address");
    if (is_encrypted && !target->text.starts_with("https:"))
      return make_failure(response, "a redirect to an address without encryption");
  }
}

std::string HubConnection::get_text(const std::string& url, const Repo& repo, HttpResponse& response) {
  for (int attempt = 1;; ++attempt) {
    std::string text;
    response = get(url, {}, [&](const HttpResponse& /*head*/, std::string_view bytes) {
      if (text.size() + bytes.size() > kMaxTextBytes) return false;
      text += bytes;
      return true;
    });
    if (response.error == TransferError::kStopped)
      response.problem = fmt::format("the answer is longer than {}", format_bytes(kMaxTextBytes));
    constexpr int kOk = 200;
    if (response.error == TransferError::kNone && response.status == kOk) return text;
    if (attempt == kMaxAttempts || !is_temporary_failure(response))
      throw make_hub_error(settings_, repo, repo.to_string(), response);
    if (attempt == 1) {
      spdlog::warn("{}: {}; retrying", repo.to_string(),
                   response.problem.empty() ? fmt::format("status {}", response.status) : response.problem);
    }
    wait_before_retry(settings_, response, attempt);
  }
}

}  // namespace vlmtrain::hub
