#include <fmt/format.h>
#include <gmock/gmock.h>

#include "hub/hub_server.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/hub/snapshot.h"

namespace vlmtrain::hub {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Messages about failed downloads: the cause, and what to do.
class HubErrors : public HubTest {
 protected:
  void write_small_model() const {
    write_model("config.json", "{}");
    write_model("tokenizer.json", "{}");
    write_model("model.safetensors", std::string(100'000, 'w'));
  }

  void set_token() {
    settings_.token = "hf_good";
    settings_.token_source = "HF_TOKEN";
  }

  std::string storage() const { return "http://127.0.0.1:" + std::to_string(server().storage_port()); }
};

TEST_F(HubErrors, RejectedAccessIsExplained) {
  write_small_model();
  settings_.token = "hf_wrong";
  settings_.token_source = "HF_TOKEN";
  EXPECT_EQ(fail().code(), ExitCode::kUsage);
  EXPECT_THAT(fail().what(), HasSubstr("rejects the token in HF_TOKEN"));
  settings_.token = "hf_good";
  set_faults({{"gated", {"org/model"}}});
  EXPECT_EQ(fail().code(), ExitCode::kUsage);
  EXPECT_THAT(fail().what(), AllOf(HasSubstr("access is restricted"), HasSubstr(server().endpoint() + "/org/model"),
                                   HasSubstr("the token in HF_TOKEN")));
  settings_.token.clear();
  EXPECT_THAT(fail().what(), HasSubstr("then set HF_TOKEN"));
  EXPECT_THAT(fail("org/other").what(), HasSubstr("is neither a folder nor a repository"));
}

TEST_F(HubErrors, TheStorageDoesNotBlameTheToken) {
  write_small_model();
  set_token();
  for (const int status : {401, 403, 404}) {
    set_faults({{"status", {"/storage/", status, 100}}});
    const UserError error = fail();
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    EXPECT_THAT(
        error.what(),
        AllOf(HasSubstr(fmt::format("org/model: model.safetensors: {}, to which the Hub redirects, answers with "
                                    "status {}; run the same command again for a new link",
                                    storage(), status)),
              HasSubstr("blocks " + storage()), Not(HasSubstr("token"))));
  }
}

TEST_F(HubErrors, MissingFilesAreNotMissingRepositories) {
  write_small_model();
  set_faults({{"status", {"/resolve/", 404, 100}}});
  EXPECT_EQ(fail().code(), ExitCode::kFailed);
  EXPECT_THAT(fail().what(),
              AllOf(testing::MatchesRegex("org/model: (config|tokenizer).json: .* answers with status 404; "
                                          "check HF_ENDPOINT and proxies"),
                    Not(HasSubstr("neither"))));
}

TEST_F(HubErrors, PermanentFailuresAreNotTriedAgain) {
  write_small_model();
  set_token();
  const std::pair<Json, const char*> faults[] = {
      {{{"status", {"/api/", 407, 100}}}, "status 407; set HTTPS_PROXY to http://USER:PASSWORD@HOST:PORT"},
      {{{"status", {"/api/", 431, 100}}}, "status 431; check the token in HF_TOKEN"},
      {{{"status", {"/resolve/", 451, 100}}}, "status 451; choose another repository"},
      {{{"status", {"/resolve/", 403, 100}}}, "status 403; check whether the token in HF_TOKEN may read it"},
      {{{"redirect", {"/resolve/", "file:///etc/passwd"}}}, "without a valid address; check HF_ENDPOINT and proxies"},
      {{{"huge", "/revision/"}}, "longer than 64.0 MiB; check HF_ENDPOINT and proxies"},
  };
  for (const auto& [fault, message] : faults) {
    std::filesystem::remove_all(settings_.cache);
    set_faults(fault);
    const std::string error = fail().what();
    EXPECT_THAT(error, AllOf(HasSubstr(message), Not(HasSubstr("run the same command again"))));
  }
}

TEST_F(HubErrors, ProxiesThatNeedAnAccount) {
  setenv("HTTPS_PROXY", server().endpoint().c_str(), 1);
  settings_.endpoint = "https://hub.invalid";
  const UserError error = fail();
  unsetenv("HTTPS_PROXY");
  EXPECT_EQ(error.code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(), HasSubstr("answers with status 407; set HTTPS_PROXY to"));
}

TEST_F(HubErrors, ListsOfFilesEnd) {
  write_small_model();
  write_model("merges.txt", "");
  set_faults({{"same_page", true}});
  EXPECT_EQ(fail().code(), ExitCode::kFailed);
  EXPECT_THAT(fail().what(), HasSubstr("org/model: the list of files does not end"));
  EXPECT_LT(requests().size(), 10U);
}

TEST_F(HubErrors, SlowTransfersAreTriedAgain) {
  write_small_model();
  settings_.timeout_seconds = 1;
  set_faults({{"pause", {"model.safetensors", 1, 0.05}}, {"pauses", 1}});
  EXPECT_EQ(io::read_file(fetch().folder / "model.safetensors"), std::string(100'000, 'w'));
  const auto last = requests().back();
  EXPECT_THAT(last["range"].get<std::string>(), testing::StartsWith("bytes="));
}

TEST_F(HubErrors, RedirectsInACircleEnd) {
  write_small_model();
  set_faults({{"loop", "/resolve/"}});
  EXPECT_EQ(fail().code(), ExitCode::kFailed);
  EXPECT_THAT(fail().what(), HasSubstr("more than 10 redirects; check HF_ENDPOINT"));
}

TEST_F(HubErrors, AnswersOfOtherServersAreExplained) {
  write_small_model();
  set_faults({{"login", "/tree/"}});
  const UserError error = fail();
  EXPECT_EQ(error.code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("is not that of a Hub"), HasSubstr("HTTPS_PROXY")));
}

TEST_F(HubErrors, UnreachableEndpoint) {
  settings_.endpoint = "http://127.0.0.1:1";
  const UserError error = fail();
  EXPECT_EQ(error.code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("org/model: not a folder on this machine, and cannot be downloaded from http"),
                    HasSubstr("HTTPS_PROXY")));
}

TEST_F(HubErrors, CertificatesAreChecked) {
  const auto certificate = folder() / "certificate.pem";
  const std::string command =
      "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext "
      "subjectAltName=IP:127.0.0.1 -keyout - -out - 2>/dev/null >" +
      certificate.string();
  ASSERT_EQ(std::system(command.c_str()), 0);
  const HubServer tls_server(folder() / "tls", certificate.string());
  tls_server.write("models/org/model/main/config.json", "{}");
  tls_server.write("models/org/model/main/model.safetensors", "weights");
  settings_.endpoint = tls_server.endpoint();
  const UserError error = fail();
  EXPECT_EQ(error.code(), ExitCode::kFailed);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("certificate"), HasSubstr("SSL_CERT_FILE")));
  settings_.ca_bundle = certificate.string();
  EXPECT_EQ(io::read_file(fetch().folder / "model.safetensors"), "weights");
}

TEST_F(HubErrors, RepositoriesOfOtherLayoutsAreErrors) {
  write_model("model.safetensors", "w");
  EXPECT_EQ(fail().code(), ExitCode::kBadData);
  EXPECT_THAT(fail().what(), HasSubstr("org/model: has neither config.json nor adapter_config.json"));
  write_model("config.json", "{}");
  const auto download = [&](ModelFiles files) {
    fetch_model(settings_, {.id = "org/model"}, files, Freshness::kNewest);
  };
  EXPECT_THAT(io::get_error_message([&] { download(ModelFiles::kConfig); }, ExitCode::kBadData),
              HasSubstr("org/model: has no tokenizer.json"));
  EXPECT_THAT(io::get_error_message([&] { download(ModelFiles::kAdapter); }, ExitCode::kBadData),
              HasSubstr("org/model: is not an adapter"));
  for (const auto& request : requests()) EXPECT_THAT(request["path"], testing::Not(HasSubstr("/resolve/")));
  write_model("adapter_config.json", "{}");
  write_model("adapter_model.safetensors", "a");
  download(ModelFiles::kAdapter);
}

TEST_F(HubErrors, WeightsMustBeSafetensors) {
  write_model("config.json", "{}");
  write_model("pytorch_model.bin", "pickle");
  EXPECT_EQ(fail().code(), ExitCode::kBadData);
  EXPECT_THAT(fail().what(), HasSubstr("neither model.safetensors"));
}

}  // namespace
}  // namespace vlmtrain::hub
