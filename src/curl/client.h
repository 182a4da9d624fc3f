#pragma once

#include <memory>
#include <optional>
#include <string>

#include "vlmtrain/hub/http.h"

namespace vlmtrain::hub {

// The functions of HttpLibrary, with libcurl.
std::unique_ptr<HttpClient> make_curl_client(const std::string& ca_bundle);
std::optional<Url> resolve_curl_url(const std::string& base, const std::string& reference);

}  // namespace vlmtrain::hub
