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
  /// Returns the output of --json, with the exit code as "exit_code".
  nlohmann::ordered_json ask(std::vector<std::string> arguments = {}) const {
    arguments.insert(arguments.begin(), {"doctor", "--json"});
    return parse_report(run(arguments));
  }
  static nlohmann::ordered_json parse_report(const Result& result) {
    auto report = nlohmann::ordered_json::parse(result.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(report.is_object()) << result.out << result.err;
    if (!report.is_object()) return nlohmann::ordered_json::object();
    report["exit_code"] = result.exit_code;
    EXPECT_EQ(report["would_train"].get<bool>(), result.exit_code == 0);
    EXPECT_EQ(report["first_failure"].is_null(), result.exit_code == 0);
    return report;
  }
  /// Returns the text of the first finding of this status; empty if no finding has it.
  static std::string finding(const nlohmann::ordered_json& report, const std::string& status,
                             const std::string& about) {
    for (const auto& entry : report["findings"]) {
      if (entry["status"] == status && entry["about"] == about) return entry["text"];
    }
    return {};
  }
  static std::string get_first_failure(const nlohmann::ordered_json& report) {
    return report["first_failure"].is_string() ? report["first_failure"].get<std::string>() : "";
  }

  /// Runs with stub GPU files in /dev, where a mount namespace can be created; else returns
  /// nothing.
  std::optional<Result> run_with_gpu_device_files() const {
    const std::string plant =
        "mount -t tmpfs none \"$0\" && touch \"$0/null\" \"$0/urandom\" \"$0/nvidia0\" \"$0/nvidiactl\" && mount "
        "--bind "
        "/dev/null \"$0/null\" && mount --bind /dev/urandom \"$0/urandom\" && mount --rbind \"$0\" /dev && exec \"$@\"";
    std::filesystem::create_directories(folder() / "dev");
    const auto in_namespace = [&](const std::vector<std::string>& arguments) {
      std::vector<std::string> command_line{"--map-root-user",          "--mount", "/bin/sh", "-c", plant,
                                            (folder() / "dev").string()};
      command_line.insert(command_line.end(), arguments.begin(), arguments.end());
      return Process(folder(), command_line, 0, "/usr/bin/unshare").wait();
    };
    if (in_namespace({"/bin/true"}).exit_code != 0) return std::nullopt;
    return in_namespace({VLMTRAIN_BINARY, "doctor", "--json"});
  }
};

TEST_F(DoctorTest, WithoutAGpuTrainsOnTheCpu) {
  const auto report = ask();
  EXPECT_EQ(report["exit_code"], 0) << report["findings"];
  EXPECT_EQ(report["device"], "cpu");
  EXPECT_EQ(report["driver"]["case"], "no driver");
  EXPECT_GE(report["processor"]["usable_cores"], 1);
  EXPECT_FALSE(report["processor"]["aten"].get<std::string>().empty());
  EXPECT_GT(report["memory"]["available_bytes"], 0);
  EXPECT_EQ(report["libtorch"]["loaded"], report["libtorch"]["compiled_for"]);
  EXPECT_TRUE(report["disk"]["present folder"]["writable"].get<bool>());
  EXPECT_TRUE(report["disk"]["temporary folder"]["locks"].get<bool>());
  EXPECT_GT(report["planning"]["reserved_bytes"], 0);
  const auto& step = report["step"];
  EXPECT_TRUE(step["compared"].get<bool>());
  EXPECT_LE(step["gradient_difference"], step["gradient_tolerance"]);
  EXPECT_GT(step["trial"]["steps_per_second"], 0);
  EXPECT_LT(step["trial"]["last_loss"], step["trial"]["first_loss"]);
  EXPECT_THAT(entries(folder()), Not(testing::Contains(HasSubstr("trial")))) << "it leaves no files";
}

TEST_F(DoctorTest, PrintsOneLinePerFinding) {
  install_driver("version=12040");
  const Result result = run({"doctor"});
  EXPECT_EQ(result.exit_code, 5);
  const auto lines = split_lines(result.out);
  ASSERT_GE(lines.size(), 7U);
  EXPECT_THAT(lines.front(), StartsWith("ok    processor  "));
  EXPECT_THAT(result.out, HasSubstr("\nfail  driver     the NVIDIA driver is too old"));
  EXPECT_THAT(lines.back(),
              StartsWith("training would not start. The first problem to fix: driver: the NVIDIA driver is"));
  EXPECT_EQ(result.err, "");
}

TEST_F(DoctorTest, NamesUnusableDrivers) {
  for (const auto& [driver, name, expected_text] :
       {std::tuple{"version=12040", "too old", "580 or newer"},
        {"init=304", "no permission", "/dev/nvidia*"},
        {"init=803", "fails", "restart the machine"},
        {"architecture=70 name=Tesla_V100-SXM2-16GB", "no code", "Tesla V100-SXM2-16GB"},
        {"total=25000000000 free=300000000", "no memory", "0.3 of 25.0 GB free"},
        {"context=2", "no memory", "nvidia-smi"}}) {
    install_driver(driver);
    const auto report = ask();
    EXPECT_EQ(report["exit_code"], 5) << driver;
    EXPECT_EQ(report["driver"]["case"], name) << driver;
    EXPECT_THAT(get_first_failure(report), AllOf(StartsWith("driver: "), HasSubstr(expected_text)));
    EXPECT_FALSE(report["step"].contains("trial")) << "no device is usable";
  }
}

TEST_F(DoctorTest, CrashingDriverIsAFinding) {
  install_driver("crash=1");
  const auto report = ask();
  EXPECT_EQ(report["exit_code"], 5);
  EXPECT_THAT(get_first_failure(report), AllOf(HasSubstr("signal 6"), HasSubstr("--device cpu")));
  const auto on_cpu = ask({"--device", "cpu"});
  EXPECT_EQ(on_cpu["exit_code"], 0);
  EXPECT_THAT(finding(on_cpu, "warn", "driver"), HasSubstr("signal 6"));
}

TEST_F(DoctorTest, HiddenGpusLeaveTheCpu) {
  install_driver("init=100");
  set("CUDA_VISIBLE_DEVICES", "");
  const auto result = run_with_gpu_device_files();
  if (!result) GTEST_SKIP() << "no mount namespaces for this user";
  const auto report = parse_report(*result);
  EXPECT_EQ(report["exit_code"], 0);
  EXPECT_EQ(report["driver"]["case"], "hidden");
  EXPECT_THAT(finding(report, "warn", "driver"), HasSubstr("CUDA_VISIBLE_DEVICES= hides every GPU"));
}

TEST_F(DoctorTest, ReportsMigDevices) {
  install_driver("name=NVIDIA_H100_80GB_HBM3_MIG_1g.10gb total=10200547328 free=9900000000");
  const auto report = ask();
  EXPECT_EQ(report["driver"]["case"], "MIG");
  EXPECT_TRUE(report["driver"]["gpus"][0]["mig"].get<bool>());
  EXPECT_THAT(finding(report, "ok", "driver"), AllOf(HasSubstr("MIG 1g.10gb"), HasSubstr("9.9 of 10.2 GB free")));
  EXPECT_EQ(report["exit_code"], 5) << "a stub cannot run a step";
  EXPECT_THAT(get_first_failure(report), StartsWith("step: "));
}

TEST_F(DoctorTest, ReportsHarmfulVariables) {
  set("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32");
  set("CUDA_LAUNCH_BLOCKING", "1");
  set("ONEDNN_MAX_CPU_ISA", "AVX2");
  set("ATEN_CPU_CAPABILITY", "avx2");
  const auto report = ask();
  EXPECT_EQ(report["exit_code"], 0) << report["findings"];
  EXPECT_THAT(finding(report, "warn", "driver"), HasSubstr("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:32"));
  EXPECT_THAT(report["findings"].dump(), HasSubstr("CUDA_LAUNCH_BLOCKING=1"));
  EXPECT_THAT(report["findings"].dump(), HasSubstr("ONEDNN_MAX_CPU_ISA=AVX2"));
  EXPECT_THAT(finding(report, "warn", "processor"), HasSubstr("ATEN_CPU_CAPABILITY=avx2"));
  EXPECT_EQ(report["processor"]["aten"], "AVX2");
  EXPECT_EQ(report["processor"]["bf16"], "emulated") << "AVX2 has no bf16";
}

TEST_F(DoctorTest, DryRunsAStepOnAVirtualGpu) {
  install_driver("version=12040");
  const auto report = ask({"--device", "virtual:h100"});
  EXPECT_EQ(report["exit_code"], 0) << "the driver is not queried: " << report["findings"];
  EXPECT_EQ(report["device"], "virtual:h100");
  EXPECT_TRUE(report["step"]["dry_run"].get<bool>());
  EXPECT_FALSE(report["step"]["compared"].get<bool>());
  EXPECT_GT(report["step"]["trial"]["steps"], 0);
  EXPECT_THAT(finding(report, "ok", "step"), HasSubstr("computes nothing"));
}

TEST_F(DoctorTest, ReportsMissingCustomKernels) {
  const auto kernels = std::filesystem::path(VLMTRAIN_BINARY).parent_path() / "libvlmtrain_kernels.so";
  const auto built = ask({"--device", "virtual:h100"});
  EXPECT_EQ(built["step"]["custom_kernels"]["problem"] == "", std::filesystem::exists(kernels));

  const auto home = folder() / "home";
  std::filesystem::create_directories(home);
  copy_program(home);
  std::filesystem::copy(kernels.parent_path() / "vgpu", home / "vgpu", std::filesystem::copy_options::recursive);
  std::filesystem::remove(home / kernels.filename());
  const auto without = parse_report(
      Process(folder(), {"doctor", "--json", "--device", "virtual:h100"}, 0, (home / "vlmtrain").string()).wait());
  EXPECT_EQ(without["exit_code"], 0) << "they are not needed: " << without["findings"];
  EXPECT_THAT(finding(without, "warn", "step"),
              AllOf(HasSubstr("custom kernels are missing"), HasSubstr("libvlmtrain_kernels.so")));
}

TEST_F(DoctorTest, UnwritableFolderIsAFailure) {
  const auto report = ask({"--device", "virtual:h100", "--output-dir", "/proc/self/run"});
  EXPECT_EQ(report["exit_code"], 5);
  EXPECT_THAT(get_first_failure(report), AllOf(StartsWith("disk: output.dir"), HasSubstr("not writable")));
  set("TMPDIR", "/nowhere");
  const auto temporary = ask({"--device", "virtual:h100", "--output-dir", "run"});
  EXPECT_EQ(temporary["exit_code"], 0) << temporary["findings"];
  EXPECT_FALSE(std::filesystem::exists(folder() / "run"));
}

TEST_F(DoctorTest, ChecksConfigurationsAndTheirFiles) {
  const std::vector<std::string> with_config{"--config", "train.yaml", "--device", "virtual:t4"};
  const auto passing = ask(with_config);
  EXPECT_EQ(passing["exit_code"], 0) << passing["findings"];
  EXPECT_EQ(passing["config"]["samples"], kRecords);
  EXPECT_EQ(passing["step"]["precision"], "fp32") << "the configuration's";
  EXPECT_THAT(passing["disk"]["output.dir"]["requested"].get<std::string>(), "run");
  const auto refused = [&](const std::string& override, const std::string& expected_text) {
    auto arguments = with_config;
    arguments.push_back(override);
    const auto report = ask(arguments);
    EXPECT_EQ(report["exit_code"], 5) << override;
    EXPECT_THAT(get_first_failure(report), HasSubstr(expected_text));
  };
  refused("data.train=none.json", "config: ");
  refused("data.tarin=none.json", "unknown key data.tarin; did you mean data.train?");
  refused("training.micro_batch_size=3", "training.global_batch_size");
  refused("training.precision=bf16", "Tesla T4 does not support bf16");
  refused("training.task_weighting=fixed", "data.train has only one task");
  refused("data.image_root=/nowhere", "samples cannot be used");
  refused("lora.target_modules=[nope]", "lora");
}

TEST_F(DoctorTest, RejectsWrongArguments) {
  EXPECT_EQ(run({"doctor", "--device", "gpu"}).exit_code, 2);
  EXPECT_EQ(run({"doctor", "--device", "virtual:gtx"}).exit_code, 2);
  EXPECT_EQ(run({"doctor", "--config", "train.yaml", "--output-dir", "run"}).exit_code, 2);
}

}  // namespace

}  // namespace vlmtrain::e2e
