#include <algorithm>

#include "e2e/host.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class DriverTest : public HostTest {
 protected:
  /// Trains without a look-ahead, which would load LibTorch once more.
  Result train_on_device(const std::string& device, const std::vector<std::string>& overrides) const {
    std::vector<std::string> arguments{"--config", "train.yaml",           "--device",
                                       device,     "training.max_steps=2", "memory.look_ahead=false"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return run(arguments);
  }
  static std::vector<std::string> plan_arguments() {
    return {"plan", "--config", "train.yaml", "--gpu-gb", "8", "--json"};
  }
  /// Returns the plan without the durations.
  static nlohmann::ordered_json parse_plan(const Result& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    auto plan = nlohmann::ordered_json::parse(result.out, nullptr, /*allow_exceptions=*/false);
    for (const char* time : {"dry_run_seconds", "rehearsal_seconds", "plan_seconds"}) plan.erase(time);
    return plan;
  }
};

TEST_F(DriverTest, IgnoresADriverInTheLibraryPath) {
  const auto plan = parse_plan(run(plan_arguments()));
  install_driver("version=13000");
  EXPECT_EQ(parse_plan(run(plan_arguments())), plan);
  const Result result = train_on_device("virtual:rtx4090", {"training.precision=bf16"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("symbol lookup error")));
}

/// The driver is in the loader's cache, where its package installs it.
TEST_F(DriverTest, IgnoresADriverInTheDefaultPath) {
  const auto plan = parse_plan(run(plan_arguments()));
  write_text(folder() / "ld.so.conf", std::string(VLMTRAIN_STUB_DRIVER_FOLDER) + "\ninclude /etc/ld.so.conf\n");
  const std::string make_cache =
      "/sbin/ldconfig -X -C '" + (folder() / "cache").string() + "' -f '" + (folder() / "ld.so.conf").string() + "'";
  // NOLINTNEXTLINE(cert-env33-c,concurrency-mt-unsafe): a fixed command
  if (std::system(make_cache.c_str()) != 0 || !std::filesystem::exists(folder() / "cache")) {
    GTEST_SKIP() << "ldconfig creates no cache on this machine";
  }
  const auto in_namespace = [this](const std::vector<std::string>& arguments) {
    std::vector<std::string> command_line{"--map-root-user",
                                          "--mount",
                                          "/bin/sh",
                                          "-c",
                                          "mount --bind \"$0\" /etc/ld.so.cache && exec \"$@\"",
                                          (folder() / "cache").string()};
    command_line.insert(command_line.end(), arguments.begin(), arguments.end());
    return Process(folder(), command_line, 0, "/usr/bin/unshare").wait();
  };
  const Result possible = in_namespace({"/bin/true"});
  if (possible.exit_code != 0) GTEST_SKIP() << "no mount namespaces for this user: " << possible.err;
  const auto program = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), VLMTRAIN_BINARY);
    return in_namespace(arguments);
  };
  set("VLMTRAIN_STUB_DRIVER", "version=12040");
  const Result old = program({"--config", "train.yaml", "training.max_steps=1"});
  ASSERT_EQ(old.exit_code, 5) << "the program finds the stub: " << old.err;
  EXPECT_EQ(parse_plan(program(plan_arguments())), plan);
  const Result result = program({"--config", "train.yaml", "--device", "virtual:rtx4090", "training.max_steps=1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(DriverTest, RejectsAnOldDriver) {
  install_driver("version=12040");
  for (const char* device : {"auto", "cuda"}) {
    const Result result = train_on_device(device, {});
    EXPECT_EQ(result.exit_code, 5) << device;
    EXPECT_THAT(result.err, AllOf(HasSubstr("too old"), HasSubstr("CUDA 12.4"), HasSubstr("580 or newer"),
                                  HasSubstr("--device cpu")));
  }
  EXPECT_FALSE(std::filesystem::exists(folder() / "run"));
  EXPECT_EQ(train_on_device("cpu", {}).exit_code, 0);
}

TEST_F(DriverTest, DriverWithoutAGpuLeavesTheCpu) {
  install_driver("init=100");
  const Result result = train_on_device("auto", {});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("the run uses the CPU"), HasSubstr("the machine has no GPU")));
  EXPECT_EQ(train_on_device("cuda", {"output.dir=other"}).exit_code, 5);
}

TEST_F(DriverTest, RejectsAFailingDriver) {
  install_driver("init=803");
  const Result result = train_on_device("auto", {});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("restart the machine"));
}

TEST_F(DriverTest, RejectsAGpuWithoutKernels) {
  install_driver("architecture=70 name=Tesla_V100-SXM2-16GB");
  const Result result = train_on_device("auto", {});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, AllOf(HasSubstr("Tesla V100-SXM2-16GB"), HasSubstr("7.0"), HasSubstr("7.5")));
  const Result plan = run({"plan", "--config", "train.yaml", "--gpu", "v100"});
  EXPECT_EQ(plan.exit_code, 2);
  EXPECT_THAT(plan.err, AllOf(HasSubstr("v100"), HasSubstr("no code"), HasSubstr("t4")));
}

TEST_F(DriverTest, EnvironmentDoesNotChangeThePlan) {
  const auto plan = parse_plan(run(plan_arguments()));
  const auto expect_same_plan = [&](const std::vector<std::pair<std::string, std::string>>& variables) {
    std::vector<std::string> names;
    for (const auto& [name, value] : variables) {
      set(name, value);
      names.push_back(name + "=" + value);
    }
    EXPECT_EQ(parse_plan(run(plan_arguments())), plan) << testing::PrintToString(names);
    for (const auto& [name, value] : variables) unsetenv(name.c_str());
  };
  expect_same_plan({{"PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.001"}});
  expect_same_plan({{"PYTORCH_ALLOC_CONF", "max_split_size_mb:32,expandable_segments:False"},
                    {"PYTORCH_NO_CUDA_MEMORY_CACHING", "1"},
                    {"CUBLAS_WORKSPACE_CONFIG", ":16:8"},
                    {"CUBLASLT_WORKSPACE_SIZE", "1000000"},
                    {"TORCH_BLAS_PREFER_CUBLASLT", "1"},
                    {"TORCH_LINEAR_FLATTEN_3D", "1"}});
  expect_same_plan({{"CUDA_VISIBLE_DEVICES", ""}, {"CUDA_LAUNCH_BLOCKING", "1"}, {"CUDA_MODULE_LOADING", "EAGER"}});
  expect_same_plan({{"CUDA_VISIBLE_DEVICES", "MIG-4e5a6b7c-1111-2222-3333-444444444444"},
                    {"CUDA_MPS_PIPE_DIRECTORY", "/nowhere"},
                    {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10"},
                    {"CUDA_INJECTION64_PATH", "/nowhere.so"}});
  expect_same_plan({{"VLMTRAIN_VGPU_NAME", "t4"},
                    {"VLMTRAIN_VGPU_BYTES", "1"},
                    {"VLMTRAIN_VGPU_USED_BYTES", "x"},
                    {"VLMTRAIN_VGPU_MODULE_BYTES", "1000000000"},
                    {"VLMTRAIN_RESERVED_LIMIT_BYTES", "1000"}});
  // Preloads a real driver, as some hosts do, and a library that is unrelated to CUDA.
  expect_same_plan({{"LD_PRELOAD", std::string(VLMTRAIN_STUB_DRIVER_FOLDER) + "/libcuda.so.1"}});
  expect_same_plan({{"LD_PRELOAD", "libz.so.1"}});
}

TEST_F(DriverTest, WarnsAboutIgnoredAllocatorSettings) {
  ASSERT_EQ(train_on_device("virtual:rtx4090", {}).exit_code, 0);
  const auto memory = json_file(std::string(kVirtualRun) + "plan.json")["measured"];
  std::filesystem::remove_all(folder() / "run");
  set("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.001");
  const Result result = train_on_device("virtual:rtx4090", {});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:0.001"),
                                HasSubstr("ignored"), HasSubstr("memory.limit_gb")));
  auto measured_again = json_file(std::string(kVirtualRun) + "plan.json")["measured"];
  EXPECT_EQ(measured_again["reserved_peak_bytes"], memory["reserved_peak_bytes"]);
}

/// Makes the GPU smaller than the plan assumes.
TEST_F(DriverTest, ExternalLimitAppliesToTheAllocator) {
  set("VLMTRAIN_RESERVED_LIMIT_BYTES", "8000000");  // less than the workspace of a matrix product
  const Result result = train_on_device("virtual:rtx4090", {});
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("plan: fits"), HasSubstr("out of memory ("), HasSubstr("7.63 MiB allowed")))
      << "the plan ignores it";
  set("VLMTRAIN_RESERVED_LIMIT_BYTES", "much");
  EXPECT_EQ(train_on_device("virtual:rtx4090", {"output.dir=other"}).exit_code, 2);
}

/// Dry runs preload libraries, and LD_PRELOAD cannot name a path with a space.
TEST_F(DriverTest, RunsFromAFolderWithASpace) {
  const auto home = folder() / "a folder";
  const std::filesystem::path program = VLMTRAIN_BINARY;
  std::filesystem::create_directories(home);
  copy_program(home);
  std::filesystem::copy(program.parent_path() / "vgpu", home / "vgpu", std::filesystem::copy_options::recursive);
  const auto plan = parse_plan(run(plan_arguments()));
  install_driver("version=13000");
  const auto run_there = [&] { return Process(folder(), plan_arguments(), 0, (home / "vlmtrain").string()).wait(); };
  EXPECT_EQ(parse_plan(run_there()), plan);
  std::filesystem::remove(home / "vgpu/libcublas.so.13");
  const Result partial = run_there();
  EXPECT_EQ(partial.exit_code, 5);
  EXPECT_THAT(partial.err, AllOf(HasSubstr("libcublas.so.13"), HasSubstr("a folder/vgpu")));
}

/// Returns the first child of a process, once there is one.
pid_t first_child(pid_t parent) {
  const auto path =
      std::filesystem::path("/proc") / std::to_string(parent) / "task" / std::to_string(parent) / "children";
  pid_t child = 0;
  std::ifstream(path) >> child;
  return child;
}

TEST_F(DriverTest, FailedPlanDoesNotStopTheRun) {
  Process process(folder(), {"--config", "train.yaml", "--device", "virtual:rtx4090", "training.max_steps=2",
                             "memory.look_ahead=false"});
  wait_until(process, [&] {
    const pid_t child = first_child(process.id());
    return child > 0 && kill(child, SIGKILL) == 0;
  });
  const Result result = process.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("planning failed"), HasSubstr("single samples")));
  const auto steps = step_lines(std::string(kVirtualRun) + "metrics.jsonl");
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[1]["micro_batches"], 4) << "single samples of a global batch of four";
  EXPECT_FALSE(std::filesystem::exists(folder() / kVirtualRun / "plan.json"));
}

TEST_F(DriverTest, PlanCommandReportsFailure) {
  Process process(folder(), plan_arguments());
  wait_until(process, [&] {
    const pid_t child = first_child(process.id());
    return child > 0 && kill(child, SIGKILL) == 0;
  });
  EXPECT_EQ(process.wait().exit_code, 5);
}

TEST_F(DriverTest, PlansForMigDevices) {
  const auto plan = [&](const std::string& gpu) {
    return parse_plan(run({"plan", "--model", "smolvlm-256m", "--gpu", gpu, "--json"}));
  };
  const auto mig_plan = plan("h100-mig-3g.40gb");
  const auto full_plan = plan("h100");
  EXPECT_THAT(mig_plan["gpu"], HasSubstr("NVIDIA H100 80GB HBM3 MIG 3g.40gb"));
  EXPECT_EQ(mig_plan["gpu_bytes"], int64_t{40'448} << 20);
  EXPECT_GT(mig_plan["step_seconds"].get<double>(), full_plan["step_seconds"].get<double>());
  const Result result = train_on_device("virtual:h100-mig-1g.10gb", {});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::exists(folder() / "run/virtual-h100-mig-1g.10gb/plan.json"));
  const Result unknown = run({"plan", "--config", "train.yaml", "--gpu", "h100-mig-3g.80gb"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("h100-mig-3g.40gb"));
}

/// Kernels load at their first launch: the context grows after it was measured, and the first step
/// is slow.
TEST_F(DriverTest, CountsAGrowingContext) {
  set("VLMTRAIN_VGPU_MODULE_BYTES", "20000000");
  set("VLMTRAIN_VGPU_MODULE_SECONDS", "0.02");
  const Result result = train_on_device("virtual:rtx4090", {"training.max_steps=4", "memory.look_ahead=true"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plan = json_file(std::string(kVirtualRun) + "plan.json");
  const auto used = plan["measured"]["device_used_bytes"].get<int64_t>();
  const auto reserved = plan["measured"]["reserved_peak_bytes"].get<int64_t>();
  EXPECT_GT(used, plan["memory"]["context_bytes"].get<int64_t>() + reserved + 100'000'000)
      << "several modules of 20 MB are loaded";
  const auto steps = step_lines(std::string(kVirtualRun) + "metrics.jsonl");
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_EQ(steps[3]["reserved_peak_bytes"], steps[3]["predicted_peak_bytes"]) << "the look-ahead loads no modules";
  EXPECT_GT(steps[0]["step_seconds"].get<double>(), 0.1);
}

TEST_F(DriverTest, RejectsUnsupportedArchitectures) {
  for (const char* architecture : {"70", "110", "130"}) {
    set("VLMTRAIN_VGPU_ARCHITECTURE", architecture);
    const Result result = train_on_device("virtual:b200", {});
    EXPECT_EQ(result.exit_code, 5) << architecture;
    EXPECT_THAT(result.err, AllOf(HasSubstr("no code"), HasSubstr("NVIDIA B200")));
  }
}

}  // namespace

}  // namespace vlmtrain::e2e
