#include "vlmtrain/hub/settings.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::hub {

namespace fs = std::filesystem;

namespace {

/// Returns the value of a variable, or nothing if it is not set or empty.
std::optional<std::string> get_env(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

/// Returns the path in a variable. "~" at its start is the home folder.
std::optional<fs::path> get_env_path(const char* name) {
  auto text = get_env(name);
  if (!text) return std::nullopt;
  if (*text == "~" || text->starts_with("~/")) {
    if (const auto home = get_env("HOME")) text->replace(0, 1, *home);
  }
  return fs::path(*text);
}

fs::path get_hub_home() {
  if (const auto home = get_env_path("HF_HOME")) return *home;
  if (const auto cache = get_env_path("XDG_CACHE_HOME")) return *cache / "huggingface";
  if (const auto home = get_env_path("HOME")) return *home / ".cache/huggingface";
  throw usage_error("HF_HOME: not set, and HOME neither; set it to the folder of the Hugging Face cache");
}

bool is_true(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char letter) { return std::toupper(letter); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

std::string trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

void read_token(HubSettings& settings, const fs::path& home) {
  for (const char* variable : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    settings.token = trim(get_env(variable).value_or(""));
    settings.token_source = variable;
    if (!settings.token.empty()) break;
  }
  if (settings.token.empty()) {
    const fs::path file = get_env_path("HF_TOKEN_PATH").value_or(home / "token");
    settings.token_source = file.string();
    std::error_code error;
    if (fs::is_regular_file(file, error)) settings.token = trim(io::read_file(file));
  }
  // A line break would add a header.
  const auto is_printable = [](unsigned char c) { return c > ' ' && c < 127; };
  if (!std::ranges::all_of(settings.token, is_printable)) {
    throw usage_error("{}: is not a token, because it has spaces or special characters; write the token alone",
                      settings.token_source);
  }
  if (settings.token.empty()) settings.token_source.clear();
}

std::string find_ca_bundle() {
  for (const char* variable : {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}) {
    const auto file = get_env_path(variable);
    if (!file) continue;
    std::error_code error;
    if (!fs::is_regular_file(*file, error))
      throw usage_error("{}: {} is not a file; set it to a file of certificates, or unset it", variable,
                        file->string());
    return file->string();
  }
  constexpr std::array<const char*, 4> kSystemBundles{
      "/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu
      "/etc/pki/tls/certs/ca-bundle.crt",    // Red Hat, Rocky, Fedora
      "/etc/ssl/ca-bundle.pem",              // SUSE
      "/etc/ssl/cert.pem",                   // Alpine
  };
  for (const char* file : kSystemBundles) {
    std::error_code error;
    if (fs::is_regular_file(file, error)) return file;
  }
  return "";
}

}  // namespace

HubSettings read_hub_settings() {
  HubSettings settings;
  const fs::path home = get_hub_home();
  settings.cache = get_env_path("HF_HUB_CACHE").value_or(get_env_path("HUGGINGFACE_HUB_CACHE").value_or(home / "hub"));
  if (const auto endpoint = get_env("HF_ENDPOINT")) settings.endpoint = *endpoint;
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  if (!settings.endpoint.starts_with("https://") && !settings.endpoint.starts_with("http://"))
    throw usage_error("HF_ENDPOINT: {} is not a URL; write https://HOST", settings.endpoint);
  // Messages and logs name the endpoint, which must not have a password.
  if (settings.endpoint.find_first_of("@?#") != std::string::npos)
    throw usage_error("HF_ENDPOINT: has a user, a query or a fragment; write https://HOST, and set HF_TOKEN");
  read_token(settings, home);
  for (const char* variable : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    const auto value = get_env(variable);
    if (!value) continue;
    if (is_true(*value)) settings.offline_variable = variable;
    break;  // HF_HUB_OFFLINE=0 takes precedence over the other
  }
  if (const auto seconds = get_env("HF_HUB_DOWNLOAD_TIMEOUT")) {
    const auto [end, error] =
        std::from_chars(seconds->data(), seconds->data() + seconds->size(), settings.timeout_seconds);
    if (error != std::errc() || end != seconds->data() + seconds->size() || !(settings.timeout_seconds > 0))
      throw usage_error("HF_HUB_DOWNLOAD_TIMEOUT: {} is not a number of seconds; write one above 0", *seconds);
  }
  settings.ca_bundle = find_ca_bundle();
  return settings;
}

}  // namespace vlmtrain::hub
