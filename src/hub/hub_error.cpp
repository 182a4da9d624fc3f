#include "hub/hub_error.h"

#include <fmt/format.h>

#include <string_view>

#include "vlmtrain/base/text_format.h"

namespace vlmtrain::hub {

namespace {

constexpr int kUnauthorized = 401, kForbidden = 403, kNotFound = 404, kProxyAuthenticationRequired = 407,
              kTooManyRequests = 429, kHeadersTooLarge = 431, kUnavailableForLegalReasons = 451,
              kInternalServerError = 500;

/// Returns the fix of a failed transfer.
std::string describe_fix(const HubSettings& settings, const HubResponse& response) {
  if (!response.fix.empty()) return response.fix;
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
    case TransferError::kInterrupted:
      return "run the same command again; downloads continue where they ended";
    default:
      return "check HF_ENDPOINT and proxies";
  }
}

/// Returns the fix of a status that has no meaning of its own on the Hub.
std::string describe_status_fix(const HubSettings& settings, const HubResponse& response, const std::string& page) {
  if (response.status == kProxyAuthenticationRequired)
    return "set HTTPS_PROXY to http://USER:PASSWORD@HOST:PORT, since the proxy needs an account";
  // The storage checks signatures in the URL, which expire. It gets no token.
  if (!response.other_origin.empty() && response.status < kInternalServerError) {
    return fmt::format(
        "run the same command again for a new link from the Hub, and check whether the network blocks {}",
        response.other_origin);
  }
  switch (response.status) {
    case kForbidden:
      return settings.token.empty() ? "set HF_TOKEN to a token that may read it"
                                    : fmt::format("check whether the token in {} may read it", settings.token_source);
    case kHeadersTooLarge:
      return settings.token.empty() ? "shorten the name or the revision"
                                    : fmt::format("check the token in {}", settings.token_source);
    case kUnavailableForLegalReasons:
      return fmt::format("choose another repository; it is blocked for legal reasons, see {}", page);
    case kTooManyRequests:
      return "run the same command again in some minutes; downloads continue where they ended";
    default:
      return response.status >= kInternalServerError ? "run the same command again later"
                                                     : "check HF_ENDPOINT and proxies";
  }
}

}  // namespace

UserError make_hub_error(const HubSettings& settings, const Repo& repo, const std::string& file,
                         const HubResponse& response) {
  const std::string subject = file.empty() ? repo.to_string() : fmt::format("{}: {}", repo.id, make_excerpt(file));
  const bool has_redirect = !response.other_origin.empty();
  const std::string server =
      has_redirect ? fmt::format("{}, to which the Hub redirects,", response.other_origin) : settings.endpoint;
  if (response.error != TransferError::kNone) {
    // A model may be a folder that the user expected on this machine.
    const bool may_be_folder = repo.type == RepoType::kModel && file.empty();
    return run_error("{}: {}cannot be downloaded from {}: {}; {}", subject,
                     may_be_folder ? "not a folder on this machine, and " : "",
                     has_redirect ? response.other_origin : settings.endpoint, response.problem,
                     describe_fix(settings, response));
  }
  // https://github.com/huggingface/huggingface_hub, hf_raise_for_status()
  const std::string code = has_redirect ? "" : response.header("x-error-code");
  const std::string text = response.header("x-error-message");
  const std::string page =
      fmt::format("{}/{}{}", settings.endpoint, repo.type == RepoType::kDataset ? "datasets/" : "", repo.id);
  const bool has_token = !settings.token.empty();
  if (code == "GatedRepo") {
    return usage_error("{}: access is restricted; accept the conditions at {}{}", subject, page,
                       has_token ? fmt::format(" with the account of the token in {}", settings.token_source)
                                 : std::string(", then set HF_TOKEN to a token of that account"));
  }
  if (!has_redirect &&
      (text.starts_with("Invalid credentials") || (response.status == kUnauthorized && has_token && code.empty()))) {
    return usage_error("{}: the Hub rejects the token in {}; create another at {}/settings/tokens, or unset it",
                       subject, settings.token_source, settings.endpoint);
  }
  if (code == "RevisionNotFound")
    return usage_error("{}: has no revision {}; the branches and tags are at {}", repo.id, repo.revision, page);
  if (code == "EntryNotFound") return run_error("{}: is not in the repository; see {}", subject, page);
  const bool is_missing = !has_redirect && (response.status == kUnauthorized || response.status == kNotFound);
  if (code == "RepoNotFound" || (is_missing && file.empty())) {
    return usage_error("{}: is neither a folder nor a repository at {}{}", subject, settings.endpoint,
                       has_token ? fmt::format(" that the token in {} may read; check the name", settings.token_source)
                                 : std::string("; check the name, or set HF_TOKEN if it is private"));
  }
  return run_error("{}: {} answers with status {}{}; {}", subject, server, response.status,
                   text.empty() ? "" : fmt::format(" ({})", make_excerpt(text)),
                   describe_status_fix(settings, response, page));
}

}  // namespace vlmtrain::hub
