#include "hub/connection.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "hub/hub_error.h"
#include "vlmtrain/base/error.h"
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

HubResponse make_failure(HubResponse response, std::string problem) {
  response.error = TransferError::kOther;
  response.problem = std::move(problem);
  response.fix = "check HF_ENDPOINT and proxies";
  return response;
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

HubConnection::HubConnection(const HubSettings& settings)
    : settings_(settings), library_(get_http_library()), client_(library_.make_client(settings.ca_bundle)) {
  const auto endpoint = library_.resolve_url(settings.endpoint, settings.endpoint);
  if (!endpoint) throw usage_error("HF_ENDPOINT: {} is not a URL; write https://HOST", make_excerpt(settings.endpoint));
  endpoint_origin_ = endpoint->origin;
}

HubResponse HubConnection::get(const std::string& url, const std::vector<std::string>& headers, const BodySink& sink) {
  auto target = library_.resolve_url(url, url);
  if (!target) return make_failure({}, url + " is not a URL");
  for (int redirects = 0;; ++redirects) {
    HttpRequest request{.url = target->text, .headers = headers, .timeout_seconds = settings_.timeout_seconds};
    request.headers.emplace_back("User-Agent: vlmtrain");
    if (!settings_.token.empty() && target->origin == endpoint_origin_)
      request.headers.push_back("Authorization: Bearer " + settings_.token);
    HubResponse response{client_->get(request, [&](const HttpResponse& head, std::string_view bytes) {
      return is_redirect(head.status) || sink(head, bytes);
    })};
    if (target->origin != endpoint_origin_) response.other_origin = target->origin;
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

std::string HubConnection::get_text(const std::string& url, const Repo& repo, HttpResponse& head) {
  for (int attempt = 1;; ++attempt) {
    std::string text;
    HubResponse response = get(url, {}, [&](const HttpResponse& /*head*/, std::string_view bytes) {
      if (text.size() + bytes.size() > kMaxTextBytes) return false;
      text += bytes;
      return true;
    });
    if (response.error == TransferError::kStopped)
      response = make_failure(std::move(response), "the answer is longer than " + format_bytes(kMaxTextBytes));
    constexpr int kOk = 200;
    if (response.error == TransferError::kNone && response.status == kOk) {
      head = std::move(response);
      return text;
    }
    if (attempt == kMaxAttempts || !is_temporary_failure(response))
      throw make_hub_error(settings_, repo, /*file=*/"", response);
    if (attempt == 1) {
      spdlog::warn("{}: {}; retrying", repo.to_string(),
                   response.problem.empty() ? fmt::format("status {}", response.status) : response.problem);
    }
    wait_before_retry(settings_, response, attempt);
  }
}

}  // namespace vlmtrain::hub
