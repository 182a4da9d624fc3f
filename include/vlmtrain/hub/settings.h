#pragma once

#include <filesystem>
#include <string>

namespace vlmtrain::hub {

/// The settings of the Hub in the environment. Variables, defaults and their order are those of
/// huggingface_hub (https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables).
struct HubSettings {
  std::filesystem::path cache{};                    ///< HF_HUB_CACHE, else hub in HF_HOME
  std::string endpoint = "https://huggingface.co";  ///< HF_ENDPOINT, without a slash at the end
  std::string token{};                              ///< HF_TOKEN, else the token file; may be empty
  std::string token_source{};                       ///< variable or file of the token, for messages
  std::string offline_variable{};                   ///< variable that forbids the network; empty: allowed
  double timeout_seconds = 10;                      ///< HF_HUB_DOWNLOAD_TIMEOUT
  double retry_seconds = 1;                         ///< pause before the first retry, which doubles at each
  std::string ca_bundle{};                          ///< certificates to trust; empty: libcurl's default

  bool is_offline() const { return !offline_variable.empty(); }
};

/// Reads the settings. The CA bundle is that of SSL_CERT_FILE, REQUESTS_CA_BUNDLE or
/// CURL_CA_BUNDLE, else the first that exists of those of Debian, Red Hat, SUSE and Alpine. Throws
/// UserError (kUsage) for an invalid variable.
HubSettings read_hub_settings();

}  // namespace vlmtrain::hub
