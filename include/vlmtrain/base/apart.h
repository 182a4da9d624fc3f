#pragma once

#include "vlmtrain/base/subprocess.h"
