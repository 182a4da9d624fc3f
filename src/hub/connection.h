#pragma once

#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/hub/http.h"
#include "vlmtrain/hub/repo.h"
#include "vlmtrain/hub/settings.h"

namespace vlmtrain::hub {

/// Loads the plug-in with libcurl at the first call. Throws run_error if it cannot be loaded.
const HttpLibrary& get_http_library();

/// A response after redirects.
struct HubResponse : HttpResponse {
  std::string other_origin{};  ///< origin of the last request if it is not the endpoint's
  std::string fix{};           ///< a phrase on what to do about `problem`; empty: it follows from `error`
};

/// The number of attempts for a request whose failure may be temporary.
inline constexpr int kMaxAttempts = 5;

/// Returns true if the same request may succeed later: the network failed, or the server is
/// overloaded.
bool is_temporary_failure(const HttpResponse& response);

/// Waits before the next attempt: as long as the server asks for, at most a minute, else
/// settings.retry_seconds times 1, 2, 4, 8. `attempt` counts from 1.
void wait_before_retry(const HubSettings& settings, const HttpResponse& response, int attempt);

/// A connection to the Hub. Sends the token to the endpoint's origin only, also after redirects.
/// Use an object from one thread at a time.
class HubConnection {
 public:
  /// `settings` must outlive the object.
  explicit HubConnection(const HubSettings& settings);

  const HubSettings& settings() const { return settings_; }

  /// Sends one GET request and follows redirects. `headers` are further headers. `sink` receives
  /// the body of the last response. Redirects in a circle, to other protocols or from https to http
  /// are errors of kind kOther.
  HubResponse get(const std::string& url, const std::vector<std::string>& headers, const BodySink& sink);

  /// Returns the body of a response with status 200, and its headers in `head`. Makes several
  /// attempts. Throws make_hub_error() about `repo`.
  std::string get_text(const std::string& url, const Repo& repo, HttpResponse& head);

 private:
  const HubSettings& settings_;
  const HttpLibrary& library_;
  std::unique_ptr<HttpClient> client_;
  std::string endpoint_origin_;
};

}  // namespace vlmtrain::hub
