#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::hub {

/// Cause of a failed transfer.
enum class TransferError {
  kNone,
  kResolve,      ///< the host name has no address
  kConnect,      ///< no connection, also to a proxy
  kTls,          ///< no trusted encrypted connection
  kTimeout,      ///< no connection in time, or no data for too long
  kInterrupted,  ///< the connection ended before the response
  kStopped,      ///< the sink returned false
  kOther,
};

/// An HTTP response without its body.
struct HttpResponse {
  int status = 0;                                ///< 0 if no response was received
  std::map<std::string, std::string> headers{};  ///< by name in lower case; the last value of a repeated name
  TransferError error = TransferError::kNone;
  std::string problem{};  ///< a phrase for messages; empty without an error

  /// Returns the value of a header, or "".
  std::string header(const std::string& name) const {
    const auto entry = headers.find(name);
    return entry == headers.end() ? "" : entry->second;
  }
};

/// A GET request.
struct HttpRequest {
  std::string url{};
  std::vector<std::string> headers{};  ///< "Name: value"
  double timeout_seconds = 10;         ///< for connecting, and for the longest pause without data
};

/// An absolute URL.
struct Url {
  std::string text;    ///< normalized
  std::string origin;  ///< scheme, host and port: "https://huggingface.co:443"
};

/// Receives the parts of a body, after the status and the headers. Returning false ends the
/// transfer.
using BodySink = std::function<bool(const HttpResponse& head, std::string_view bytes)>;

/// A client with one connection. Proxies follow from the environment (http_proxy, HTTPS_PROXY,
/// ALL_PROXY, NO_PROXY). Use an object from one thread at a time.
class HttpClient {
 public:
  virtual ~HttpClient() = default;
  /// Sends a GET request and passes the body to `sink`. Redirects are not followed. Does not throw,
  /// unless `sink` does.
  virtual HttpResponse get(const HttpRequest& request, const BodySink& sink) = 0;
};

/// The hash functions that name files on the Hub.
enum class HashFunction {
  kSha1,    ///< of git's header "blob SIZE\0" and the content
  kSha256,  ///< of the content
};

/// A hash of bytes that arrive in parts.
class Hash {
 public:
  virtual ~Hash() = default;
  virtual void add(std::string_view bytes) = 0;
  /// Returns the hash as hexadecimal digits in lower case. REQUIRES: called once, at the end.
  virtual std::string to_hex() = 0;
};

/// HTTP and hash functions of well-kept libraries. A plug-in implements it, so that the program
/// does not link to libcurl; this header is the whole contract between them. Thread-safe.
class HttpLibrary {
 public:
  virtual ~HttpLibrary() = default;
  /// `ca_bundle`: a file of certificates to trust, in PEM format; empty: the library's default.
  virtual std::unique_ptr<HttpClient> make_client(const std::string& ca_bundle) const = 0;
  virtual std::unique_ptr<Hash> make_hash(HashFunction function) const = 0;
  /// Returns `reference`, a URL or a part of one, relative to the URL `base` (RFC 3986), or nothing
  /// if the result is not an http or https URL.
  virtual std::optional<Url> resolve_url(const std::string& base, const std::string& reference) const = 0;
};

// The plug-in exports these C functions (load_plugin() in base/process.h).
inline constexpr const char* kHttpPluginLibrary = "libvlmtrain_curl.so";
inline constexpr int kHttpPluginVersion = 1;
inline constexpr const char* kHttpPluginVersionSymbol = "vlmtrain_http_version";
/// const HttpLibrary* vlmtrain_get_http_library()
inline constexpr const char* kGetHttpLibrarySymbol = "vlmtrain_get_http_library";
using GetHttpLibraryFunction = const HttpLibrary* (*)();

}  // namespace vlmtrain::hub
