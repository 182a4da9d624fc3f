#include "vlmtrain/hub/settings.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
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

bool is_name_character(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

/// Returns the text with $NAME and ${NAME} replaced by the values of these variables. Unset ones
/// stay, as in Python's os.path.expandvars().
std::string expand_variables(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t dollar = std::min(text.find('$'), text.size());
    result += text.substr(0, dollar);
    text.remove_prefix(dollar);
    if (text.empty()) break;
    const bool has_braces = text.starts_with("${");
    const size_t begin = has_braces ? 2 : 1;
    size_t end = begin;
    while (end < text.size() && (has_braces ? text[end] != '}' : is_name_character(text[end]))) ++end;
    const bool is_whole = !has_braces || end < text.size();
    const char* const value = is_whole ? std::getenv(std::string(text.substr(begin, end - begin)).c_str()) : nullptr;
    if (is_whole && has_braces) ++end;
    result += value != nullptr ? std::string_view(value) : text.substr(0, end);
    text.remove_prefix(end);
  }
  return result;
}

/// Returns the path in a variable. "~" at its start is the home folder, and $NAME a variable.
std::optional<fs::path> get_env_path(const char* name) {
  auto text = get_env(name);
  if (!text) return std::nullopt;
  if (*text == "~" || text->starts_with("~/")) {
    if (const auto home = get_env("HOME")) text->replace(0, 1, *home);
  }
  return fs::path(expand_variables(*text));
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

bool has_visible_ascii_only(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return c > ' ' && c < 127; });
}

std::string trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

/// Logs once per process that the file in HF_TOKEN_PATH is missing.
void warn_about_missing_token_file(const fs::path& file) {
  static std::once_flag logged;
  std::call_once(logged, [&] {
    spdlog::warn("HF_TOKEN_PATH: {} does not exist, so that no token is sent; correct the path, or unset it",
                 file.string());
  });
}

void read_token(HubSettings& settings, const fs::path& home) {
  if (is_true(get_env("HF_HUB_DISABLE_IMPLICIT_TOKEN").value_or(""))) return;
  for (const char* variable : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    settings.token = trim(get_env(variable).value_or(""));
    settings.token_source = variable;
    if (!settings.token.empty()) break;
  }
  if (settings.token.empty()) {
    const auto chosen_file = get_env_path("HF_TOKEN_PATH");
    const fs::path file = chosen_file.value_or(home / "token");
    settings.token_source = file.string();
    std::error_code error;
    if (fs::is_regular_file(file, error)) settings.token = trim(io::read_file(file));
    if (chosen_file && !fs::exists(file, error)) warn_about_missing_token_file(file);
  }
  // A line break would add a header.
  if (!has_visible_ascii_only(settings.token)) {
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
  if ((!settings.endpoint.starts_with("https://") && !settings.endpoint.starts_with("http://")) ||
      !has_visible_ascii_only(settings.endpoint)) {
    throw usage_error("HF_ENDPOINT: {} is not a URL; write https://HOST", make_excerpt(settings.endpoint));
  }
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
      throw usage_error("HF_HUB_DOWNLOAD_TIMEOUT: {} is not a number of seconds; write one above 0",
                        make_excerpt(*seconds));
  }
  settings.ca_bundle = find_ca_bundle();
  return settings;
}

}  // namespace vlmtrain::hub
