from .job import Job as Job
from .job import Memory as Memory
from .job import StepCall as StepCall
from .models import MODELS as MODELS
from .models import LatentAttention as LatentAttention
