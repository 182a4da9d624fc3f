#include <algorithm>

#include "e2e/host.h"

namespace vlmtrain::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class DoctorTest : public HostTest {
 protected:
  /// What it answers with --json, and its exit code as "exit_code".
  nlohmann::ordered_json ask(std::vector<std::string> arguments = {}) const {
    arguments.insert(arguments.begin(), {"doctor", "--json"});
    return answer_of(run(arguments));
  }
  static nlohmann::ordered_json answer_of(const Result& result) {
    auto answer = nlohmann::ordered_json::parse(result.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(answer.is_object()) << result.out << result.err;
    if (!answer.is_object()) return nlohmann::ordered_json::object();
    answer["exit_code"] = result.exit_code;
    EXPECT_EQ(answer["would_train"].get<bool>(), result.exit_code == 0);
    EXPECT_EQ(answer["first_to_mend"].is_null(), result.exit_code == 0);
    return answer;
  }
  /// The text of the first finding of this kind; empty where there is none.
  static std::string finding(const nlohmann::ordered_json& answer, const std::string& severity,
                             const std::string& about) {
    for (const auto& one : answer["findings"]) {
      if (one["severity"] == severity && one["about"] == about) return one["text"];
    }
    return {};
  }
  static std::string first_to_mend(const nlohmann::ordered_json& answer) {
    return answer["first_to_mend"].is_string() ? answer["first_to_mend"].get<std::string>() : "";
  }

  /// With stub cards in /dev, where a mount namespace can be had; else nothing.
  std::optional<Result> run_with_cards_in_dev() const {
    const std::string plant =
        "mount -t tmpfs none \"$0\" && touch \"$0/null\" \"$0/urandom\" \"$0/nvidia0\" \"$0/nvidiactl\" && mount "
        "--bind "
        "/dev/null \"$0/null\" && mount --bind /dev/urandom \"$0/urandom\" && mount --rbind \"$0\" /dev && exec \"$@\"";
    std::filesystem::create_directories(folder() / "dev");
    const auto in_namespace = [&](const std::vector<std::string>& arguments) {
      std::vector<std::string> words{"--map-root-user", "--mount", "/bin/sh", "-c", plant, (folder() / "dev").string()};
      words.insert(words.end(), arguments.begin(), arguments.end());
      return Process(folder(), words, 0, "/usr/bin/unshare").wait();
    };
    if (in_namespace({"/bin/true"}).exit_code != 0) return std::nullopt;
    return in_namespace({VLMTRAIN_BINARY, "doctor", "--json"});
  }
};

TEST_F(DoctorTest, OnAMachineWithoutACardTrainingIsOnTheCpu) {
  const auto answer = ask();
  EXPECT_EQ(answer["exit_code"], 0) << answer["findings"];
  EXPECT_EQ(answer["device"], "cpu");
  EXPECT_EQ(answer["driver"]["case"], "no driver");
  EXPECT_GE(answer["processor"]["usable_cores"], 1);
  EXPECT_FALSE(answer["processor"]["aten"].get<std::string>().empty());
  EXPECT_GT(answer["memory"]["room_bytes"], 0);
  EXPECT_EQ(answer["libtorch"]["loaded"], answer["libtorch"]["compiled_for"]);
  EXPECT_TRUE(answer["disk"]["present folder"]["writable"].get<bool>());
  EXPECT_TRUE(answer["disk"]["temporary folder"]["locks"].get<bool>());
  EXPECT_GT(answer["planning"]["reserved_bytes"], 0);
  const auto& step = answer["step"];
  EXPECT_TRUE(step["compared"].get<bool>());
  EXPECT_LE(step["gradient_difference"], step["gradient_tolerance"]);
  EXPECT_GT(step["trial"]["steps_per_second"], 0);
  EXPECT_LT(step["trial"]["last_loss"], step["trial"]["first_loss"]);
  EXPECT_THAT(entries(folder()), Not(testing::Contains(HasSubstr("trial")))) << "it leaves nothing behind";
}

TEST_F(DoctorTest, PeopleGetALineAFindingAndTheVerdict) {
  install_driver("version=12040");
  const Result result = run({"doctor"});
  EXPECT_EQ(result.exit_code, 5);
  const auto lines = lines_of(result.out);
  ASSERT_GE(lines.size(), 7U);
  EXPECT_THAT(lines.front(), StartsWith("ok    processor  "));
  EXPECT_THAT(result.out, HasSubstr("\nmend  driver     the NVIDIA driver is too old"));
  EXPECT_THAT(lines.back(),
              StartsWith("training would not start. The first thing to mend: driver: the NVIDIA driver is"));
  EXPECT_EQ(result.err, "");
}

TEST_F(DoctorTest, EveryDriverThatDoesNotServeIsNamed) {
  for (const auto& [driver, name, words] :
       {std::tuple{"version=12040", "too old", "580 or newer"},
        {"init=304", "no permission", "/dev/nvidia*"},
        {"init=803", "fails", "restart the machine"},
        {"architecture=70 name=Tesla_V100-SXM2-16GB", "no code", "Tesla V100-SXM2-16GB"},
        {"total=25000000000 free=300000000", "no memory", "0.3 of 25.0 GB free"},
        {"context=2", "no memory", "nvidia-smi"}}) {
    install_driver(driver);
    const auto answer = ask();
    EXPECT_EQ(answer["exit_code"], 5) << driver;
    EXPECT_EQ(answer["driver"]["case"], name) << driver;
    EXPECT_THAT(first_to_mend(answer), AllOf(StartsWith("driver: "), HasSubstr(words)));
    EXPECT_FALSE(answer["step"].contains("trial")) << "there is nothing to try it on";
  }
}

TEST_F(DoctorTest, ADriverThatBreaksTheProcessIsAFinding) {
  install_driver("crash=1");
  const auto answer = ask();
  EXPECT_EQ(answer["exit_code"], 5);
  EXPECT_THAT(first_to_mend(answer), AllOf(HasSubstr("signal 6"), HasSubstr("--device cpu")));
  const auto on_cpu = ask({"--device", "cpu"});
  EXPECT_EQ(on_cpu["exit_code"], 0);
  EXPECT_THAT(finding(on_cpu, "note", "driver"), HasSubstr("signal 6"));
}

TEST_F(DoctorTest, CardsThatAreHiddenLeaveTheCpu) {
  install_driver("init=100");
  set("CUDA_VISIBLE_DEVICES", "");
  const auto result = run_with_cards_in_dev();
  if (!result) GTEST_SKIP() << "no mount namespaces for this user";
  const auto answer = answer_of(*result);
  EXPECT_EQ(answer["exit_code"], 0);
  EXPECT_EQ(answer["driver"]["case"], "hidden");
  EXPECT_THAT(finding(answer, "note", "driver"), HasSubstr("CUDA_VISIBLE_DEVICES= hides every GPU"));
}

TEST_F(DoctorTest, APartOfACardIsNamed) {
  install_driver("name=NVIDIA_H100_80GB_HBM3_MIG_1g.10gb total=10200547328 free=9900000000");
  const auto answer = ask();
  EXPECT_EQ(answer["driver"]["case"], "MIG");
  EXPECT_TRUE(answer["driver"]["cards"][0]["mig"].get<bool>());
  EXPECT_THAT(finding(answer, "ok", "driver"), AllOf(HasSubstr("MIG 1g.10gb"), HasSubstr("9.9 of 10.2 GB free")));
  EXPECT_EQ(answer["exit_code"], 5) << "no step can be done on a stub";
  EXPECT_THAT(first_to_mend(answer), StartsWith("step: "));
}

TEST_F(DoctorTest, HostileVariablesAreNamed) {
  set("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32");
  set("CUDA_LAUNCH_BLOCKING", "1");
  set("ONEDNN_MAX_CPU_ISA", "AVX2");
  set("ATEN_CPU_CAPABILITY", "avx2");
  const auto answer = ask();
  EXPECT_EQ(answer["exit_code"], 0) << answer["findings"];
  EXPECT_THAT(finding(answer, "note", "driver"), HasSubstr("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:32"));
  EXPECT_THAT(answer["findings"].dump(), HasSubstr("CUDA_LAUNCH_BLOCKING=1"));
  EXPECT_THAT(answer["findings"].dump(), HasSubstr("ONEDNN_MAX_CPU_ISA=AVX2"));
  EXPECT_THAT(finding(answer, "note", "processor"), HasSubstr("ATEN_CPU_CAPABILITY=avx2"));
  EXPECT_EQ(answer["processor"]["aten"], "AVX2");
  EXPECT_EQ(answer["processor"]["bf16"], "emulated") << "AVX2 has no bf16";
}

TEST_F(DoctorTest, OnAVirtualCardAStepIsRehearsed) {
  install_driver("version=12040");
  const auto answer = ask({"--device", "virtual:h100"});
  EXPECT_EQ(answer["exit_code"], 0) << "no driver is asked: " << answer["findings"];
  EXPECT_EQ(answer["device"], "virtual:h100");
  EXPECT_TRUE(answer["step"]["rehearsed"].get<bool>());
  EXPECT_FALSE(answer["step"]["compared"].get<bool>());
  EXPECT_GT(answer["step"]["trial"]["steps"], 0);
  EXPECT_THAT(finding(answer, "ok", "step"), HasSubstr("computes nothing"));
}

TEST_F(DoctorTest, OwnKernelsThatAreNotThereAreNamed) {
  const auto kernels = std::filesystem::path(VLMTRAIN_BINARY).parent_path() / "libvlmtrain_kernels.so";
  const auto built = ask({"--device", "virtual:h100"});
  EXPECT_EQ(built["step"]["own_kernels"]["problem"] == "", std::filesystem::exists(kernels));

  const auto home = folder() / "home";
  std::filesystem::create_directories(home);
  copy_program(home);
  std::filesystem::copy(kernels.parent_path() / "vgpu", home / "vgpu", std::filesystem::copy_options::recursive);
  std::filesystem::remove(home / kernels.filename());
  const auto without = answer_of(
      Process(folder(), {"doctor", "--json", "--device", "virtual:h100"}, 0, (home / "vlmtrain").string()).wait());
  EXPECT_EQ(without["exit_code"], 0) << "nothing needs them: " << without["findings"];
  EXPECT_THAT(finding(without, "note", "step"), AllOf(HasSubstr("own kernels"), HasSubstr("libvlmtrain_kernels.so")));
}

TEST_F(DoctorTest, AFolderThatCannotBeWrittenIsToBeMended) {
  const auto answer = ask({"--device", "virtual:h100", "--output-dir", "/proc/self/run"});
  EXPECT_EQ(answer["exit_code"], 5);
  EXPECT_THAT(first_to_mend(answer), AllOf(StartsWith("disk: output.dir"), HasSubstr("nothing can be written")));
  set("TMPDIR", "/nowhere");
  const auto temporary = ask({"--device", "virtual:h100", "--output-dir", "run"});
  EXPECT_EQ(temporary["exit_code"], 0) << temporary["findings"];
  EXPECT_FALSE(std::filesystem::exists(folder() / "run"));
}

TEST_F(DoctorTest, ConfigurationsAreLookedAtWithTheirFiles) {
  const std::vector<std::string> with_config{"--config", "train.yaml", "--device", "virtual:t4"};
  const auto good = ask(with_config);
  EXPECT_EQ(good["exit_code"], 0) << good["findings"];
  EXPECT_EQ(good["config"]["samples"], kRecords);
  EXPECT_EQ(good["step"]["precision"], "fp32") << "the configuration's";
  EXPECT_THAT(good["disk"]["output.dir"]["asked"].get<std::string>(), "run");
  const auto refused = [&](const std::string& override, const std::string& words) {
    auto arguments = with_config;
    arguments.push_back(override);
    const auto answer = ask(arguments);
    EXPECT_EQ(answer["exit_code"], 5) << override;
    EXPECT_THAT(first_to_mend(answer), HasSubstr(words));
  };
  refused("data.train=none.json", "config: ");
  refused("data.tarin=none.json", "unknown key data.tarin; did you mean data.train?");
  refused("training.micro_batch_size=3", "training.global_batch_size");
  refused("training.precision=bf16", "Tesla T4 does not compute in bf16");
  refused("training.task_weighting=fixed", "data.train has only one task");
  refused("data.image_root=/nowhere", "samples cannot be used");
  refused("lora.target_modules=[nope]", "lora");
}

TEST_F(DoctorTest, WrongArgumentsAreWrongUsage) {
  EXPECT_EQ(run({"doctor", "--device", "gpu"}).exit_code, 2);
  EXPECT_EQ(run({"doctor", "--device", "virtual:gtx"}).exit_code, 2);
  EXPECT_EQ(run({"doctor", "--config", "train.yaml", "--output-dir", "run"}).exit_code, 2);
}

}  // namespace
}  // namespace vlmtrain::e2e
