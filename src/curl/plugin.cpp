#include "curl/client.h"
#include "curl/digest.h"
#include "vlmtrain/hub/http.h"

namespace vlmtrain::hub {

namespace {

class CurlLibrary : public HttpLibrary {
 public:
  std::unique_ptr<HttpClient> make_client(const std::string& ca_bundle) const override {
    return make_curl_client(ca_bundle);
  }
  std::unique_ptr<Hash> make_hash(HashFunction function) const override { return make_openssl_hash(function); }
  std::optional<Url> resolve_url(const std::string& base, const std::string& reference) const override {
    return resolve_curl_url(base, reference);
  }
};

}  // namespace

}  // namespace vlmtrain::hub

extern "C" {

__attribute__((visibility("default"))) int vlmtrain_http_version() {
  return vlmtrain::hub::kHttpPluginVersion;
}

__attribute__((visibility("default"))) const vlmtrain::hub::HttpLibrary* vlmtrain_get_http_library() {
  static const vlmtrain::hub::CurlLibrary library;
  return &library;
}

}  // extern "C"
