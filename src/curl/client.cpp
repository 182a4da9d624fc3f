#include "curl/client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <utility>

namespace vlmtrain::hub {

namespace {

/// A transfer that is slower for request.timeout_seconds counts as lost. Not tuned: at this speed, a
/// gigabyte takes eleven days.
constexpr long kMinBytesPerSecond = 1024;

struct HandleDeleter {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
template <class Type>
using Handle = std::unique_ptr<Type, HandleDeleter>;

std::string trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

TransferError classify(CURLcode code) {
  switch (code) {
    case CURLE_OK:
      return TransferError::kNone;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
      return TransferError::kResolve;
    case CURLE_COULDNT_CONNECT:
    case CURLE_PROXY:
      return TransferError::kConnect;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return TransferError::kTls;
    case CURLE_OPERATION_TIMEDOUT:
      return TransferError::kTimeout;
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return TransferError::kInterrupted;
    case CURLE_WRITE_ERROR:
      return TransferError::kStopped;
    default:
      return TransferError::kOther;
  }
}

/// A response while it is received.
struct Transfer {
  CURL* handle;
  const BodySink* sink;
  HttpResponse response{};
  std::exception_ptr sink_failure{};
};

// Callbacks of libcurl, which must not throw.

/// CURLOPT_HEADERFUNCTION: one line, also of responses before the final one ("100 Continue", a
/// proxy's answer).
size_t on_header(char* text, size_t size, size_t count, void* user_data) {
  auto& transfer = *static_cast<Transfer*>(user_data);
  try {
    const std::string_view line(text, size * count);
    if (line.starts_with("HTTP/")) {
      transfer.response.headers.clear();
    } else if (const size_t colon = line.find(':'); colon != std::string_view::npos) {
      std::string name(line.substr(0, colon));
      std::ranges::transform(name, name.begin(), [](unsigned char letter) { return std::tolower(letter); });
      transfer.response.headers[name] = trim(line.substr(colon + 1));
    }
  } catch (...) {
    transfer.sink_failure = std::current_exception();
    return 0;
  }
  return size * count;
}

void read_status(Transfer& transfer) {
  long status = 0;
  curl_easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &status);
  transfer.response.status = static_cast<int>(status);
}

/// Corrects the response if a proxy refused to connect (CONNECT), which libcurl reports as an
/// interrupted transfer.
void correct_proxy_failure(Transfer& transfer) {
  constexpr long kFirstErrorStatus = 400;
  constexpr long kProxyAuthenticationRequired = 407;
  long status = 0;
  curl_easy_getinfo(transfer.handle, CURLINFO_HTTP_CONNECTCODE, &status);
  if (transfer.response.status != 0 || status < kFirstErrorStatus) return;
  transfer.response.error = TransferError::kConnect;
  if (status == kProxyAuthenticationRequired) transfer.response = {.status = static_cast<int>(status)};
}

/// CURLOPT_WRITEFUNCTION: a part of the body.
size_t on_body(char* bytes, size_t size, size_t count, void* user_data) {
  auto& transfer = *static_cast<Transfer*>(user_data);
  read_status(transfer);
  try {
    return (*transfer.sink)(transfer.response, {bytes, size * count}) ? size * count : CURL_WRITEFUNC_ERROR;
  } catch (...) {
    transfer.sink_failure = std::current_exception();
    return CURL_WRITEFUNC_ERROR;
  }
}

class CurlClient : public HttpClient {
 public:
  explicit CurlClient(std::string ca_bundle) : ca_bundle_(std::move(ca_bundle)), handle_(curl_easy_init()) {
    if (!handle_) throw std::bad_alloc();
  }

  HttpResponse get(const HttpRequest& request, const BodySink& sink) override {
    CURL* const handle = handle_.get();
    curl_easy_reset(handle);  // keeps connections
    Transfer transfer{.handle = handle, .sink = &sink};
    char problem[CURL_ERROR_SIZE] = "";
    Handle<curl_slist> headers;
    for (const std::string& header : request.headers) {
      curl_slist* const longer = curl_slist_append(headers.get(), header.c_str());
      if (longer == nullptr) throw std::bad_alloc();
      static_cast<void>(headers.release());
      headers.reset(longer);
    }
    const auto timeout = static_cast<long>(std::max(1.0, request.timeout_seconds));
    curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
    curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);  // the program has its own signal handlers
    curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, timeout);
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, kMinBytesPerSecond);
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, timeout);
    curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, static_cast<char*>(problem));
    curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
    if (!ca_bundle_.empty()) {
      curl_easy_setopt(handle, CURLOPT_CAINFO, ca_bundle_.c_str());
      curl_easy_setopt(handle, CURLOPT_PROXY_CAINFO, ca_bundle_.c_str());
    }
    // libcurl ignores the upper-case name of this one, which scripts for Python set.
    if (const char* proxy = std::getenv("HTTP_PROXY");
        proxy != nullptr && std::getenv("http_proxy") == nullptr && request.url.starts_with("http:")) {
      curl_easy_setopt(handle, CURLOPT_PROXY, proxy);
    }
    const CURLcode code = curl_easy_perform(handle);
    if (transfer.sink_failure) std::rethrow_exception(transfer.sink_failure);
    read_status(transfer);
    transfer.response.error = classify(code);
    if (code != CURLE_OK) {
      const std::string_view text(static_cast<const char*>(problem));
      transfer.response.problem = text.empty() ? curl_easy_strerror(code) : trim(text);
      correct_proxy_failure(transfer);
    }
    return std::move(transfer.response);
  }

 private:
  std::string ca_bundle_;
  Handle<CURL> handle_;
};

std::string get_url_part(CURLU* url, CURLUPart part, unsigned flags) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return "";
  std::string result(text);
  curl_free(text);
  return result;
}

}  // namespace

std::unique_ptr<HttpClient> make_curl_client(const std::string& ca_bundle) {
  static std::once_flag initialized;
  std::call_once(initialized, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  return std::make_unique<CurlClient>(ca_bundle);
}

std::optional<Url> resolve_curl_url(const std::string& base, const std::string& reference) {
  const Handle<CURLU> url(curl_url());
  if (!url || curl_url_set(url.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK ||
      curl_url_set(url.get(), CURLUPART_URL, reference.c_str(), 0) != CURLUE_OK) {
    return std::nullopt;
  }
  const std::string scheme = get_url_part(url.get(), CURLUPART_SCHEME, 0);
  std::string host = get_url_part(url.get(), CURLUPART_HOST, 0);
  if ((scheme != "http" && scheme != "https") || host.empty()) return std::nullopt;
  std::ranges::transform(host, host.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return Url{.text = get_url_part(url.get(), CURLUPART_URL, 0),
             .origin = scheme + "://" + host + ":" + get_url_part(url.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT)};
}

}  // namespace vlmtrain::hub
