// An NVML that finds no GPU, as a real one does not list the virtual GPU.

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's.
extern "C" {

int nvmlInit_v2() {
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char*, void**) {
  constexpr int kNotFound = 6;
  return kNotFound;
}

int nvmlDeviceGetComputeRunningProcesses(void*, unsigned*, void*) {
  constexpr int kInvalidArgument = 2;
  return kInvalidArgument;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, void*) {
  return 3;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) {
  return 3;
}

int nvmlDeviceGetGpuFabricInfoV(void*, void*) {
  return 3;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
