"""The shapes of identifying parts of a text: addresses, serial numbers, secrets, and names after known words.

No shape contains a digit literally, so that it matches either all or none of the lines that differ only in their
digits. `SimilarLines` tries it once for all of them.
"""

from __future__ import annotations

import re

WORD = re.compile(r"[^\W_]+(?:[-_.]+[^\W_]+)*")
"""Letters and digits, in parts that dashes, underscores and dots separate."""

# -- secrets -----------------------------------------------------------------------------------------------------------

PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,20}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,20}PRIVATE KEY-----|\Z)", re.DOTALL
)

TOKENS = re.compile(
    "|".join(
        (
            r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16}\b",  # AWS
            r"\bhf_[A-Za-z0-9]{16,}",  # Hugging Face
            r"\b(?:gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,})",
            r"\b(?:sk|pk|rk)-[\w-]{16,}",  # OpenAI, Anthropic and others
            r"\bnvapi-[\w-]{20,}",
            r"\bxox[abeprs]-[\w-]{10,}",  # Slack
            r"\bAIza[\w-]{30,}",  # Google
            r"\bya\d\d\.[\w-]{16,}",  # Google, which writes 29
            r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",  # JSON web tokens
            r"\b(?:npm_|pypi-|dckr_pat_)[\w-]{20,}",
            r"\bssh-(?:rsa|dss|ed\d{5}) [A-Za-z0-9+/=]{40,}",
            r"(?<=--world_info=)[\w+/=-]{8,}",  # the hosts of DeepSpeed, in Base64
            r"(?<=hooks\.slack\.com/services/)[\w/]{20,}",
            r"(?<=[?&]sig=)[\w%.~+/=-]{6,}|(?<=[?&]key=)[\w%.~+/=-]{6,}",  # addresses that are signed
            r"(?i:\b(?:bearer|basic) )(?=[A-Za-z._~+/=-]*\d)[\w.~+/=-]{8,}",
            r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])",  # Weights & Biases, and other keys of 160 bits
        )
    )
)
"""Secrets that can be recognised without a word before them, apart from private keys, which have several lines."""

CREDENTIALS = re.compile(r"(?<=://)(?P<user>[^\s/@:\"'<>]{0,200})(?::[^\s/@\"'<>]{0,500})?@")
"""The user and the password in an address."""

_SECRET_WORDS = (
    r"[\w.-]{0,60}(?:(?<![a-z])(?:auth)?token(?!i[sz]|s)|secret|passw(?:or)?d|passwd|passphrase|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|account[_-]?key|signing[_-]?key|credentials?|authorization|signature|cookie|(?<![a-z])auth(?=[\"']))[\w.-]{0,60}"
)
_NO_COUNT = r"(?!\[secret\]|(?:-?\d{1,6}(?:\.\d+)?|(?i:true|false|none|null|yes|no))(?:[\s\"',;&)\]}]|$))"
# Counts and switches are no secrets: token=512, token=True.

KEYED_SECRET = re.compile(
    rf"(?P<key>(?i:(?<!\w){_SECRET_WORDS})|(?<!\w)[A-Z][A-Z0-9_]{{0,60}}_(?:KEY|PAT|PWD|PASS)(?!\w))"
    r"(?P<between>(?:\\?[\"'])?[ \t]*(?:[:=]|(?<=\w)[ \t](?=\S*\d))[ \t]*"
    r"(?:\\?[\"'])?(?:(?i:bearer|basic|token)[ \t]+)?)"
    rf"{_NO_COUNT}"
    # In quotes, a secret may have spaces.
    r"(?:(?<=\")[^\"\\\n]{1,200}(?=\\?\")|(?<=')[^'\\\n]{1,200}(?=\\?')|(?:[^\s\"'<>&,;\\]|\\(?![\"']))+)"
)
"""A word such as ``password`` or ``HF_TOKEN`` with a value."""

OPTION_SECRET = re.compile(
    rf"(?P<key>(?<![\w-])--?(?i:{_SECRET_WORDS}))(?P<between>[ \t]+[\"']?){_NO_COUNT}(?!-)[^\s\"'<>&,;]+"
)
"""An option of a command with a value, such as ``--token abc``."""

FURTHER_WORDS = re.compile(
    r"(?P<key>(?i:passw(?:or)?d|passwd|passphrase|pwd)[\w.-]{0,60}(?:\\?[\"'])?[ \t]*[:=]?[ \t]*\[secret\])"
    r"(?:[ \t]+(?![\w.-]{1,60}[=:]|-|\[secret\])[^\s\"'<>&,;|#]{1,200}){1,20}"
)
"""The words after the first one of a password without quotes, which `KEYED_SECRET` has replaced."""

_NO_PASSWORD = r"(?:[\d:.,-]+|\d*p\d*p|[\w.-]*[/:~][^\s]*|[./~$%{][^\s]*)(?![^\s\"'<>&,;|)])"
SHORT_OPTION_SECRET = re.compile(
    # Where -p is a partition, a port, a folder or a plugin.
    r"(?<![^\s\"'`(])(?<!mkdir )(?<!sinfo )(?<!squeue )(?<!srun )(?<!sbatch )(?<!salloc )(?<!SBATCH )(?<!topo )(?<!ps )"
    rf"(?P<key>-p(?:[ \t]+|=)[\"']?)(?!-){_NO_COUNT}(?!{_NO_PASSWORD})[^\s\"'<>&,;|]+"
    # Attached to -p, a password has a digit, a capital or a sign, unlike the options -pthread and -prepend-rank.
    rf"|(?<![^\s\"'`(])(?P<attached>-p)(?=[^\s\"'<>&,;|]{{0,100}}[^a-z\s_=\"'<>&,;|-])"
    rf"(?!{_NO_PASSWORD})(?![a-z-]{{2,30}}[= :])"
    r"[^\s\"'<>&,;|]{4,}"
    r"|(?P<login>(?:\bsshpass|\bmysql\w*|\bmariadb\w*)[^|;&\n]{0,200} -p)(?![ \t\[])[^\s\"'<>&,;|]+"
)
"""A password after ``-p``, as for sshpass, mysql and docker login."""

PARTITION_COMMAND = re.compile(
    r"\b(?:srun|sbatch|salloc|sinfo|squeue|scontrol|mkdir|pytest|nvidia-smi|lsof|nsys)\b|SBATCH"
)
"""A command with another meaning of ``-p``."""

# -- hardware ----------------------------------------------------------------------------------------------------------

UUID = re.compile(
    r"(?<![0-9A-Za-z])(?P<kind>(?:MIG-GPU|GPU|MIG)-)?"
    r"(?P<uuid>[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})(?![0-9A-Za-z])"
)

HARDWARE_IDS = {
    "mac": re.compile(
        r"(?<![\w:.-])(?:[0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2}(?![\w:])"
        r"|(?<![\w:.-])(?:[0-9a-fA-F]{2}-){5}[0-9a-fA-F]{2}(?![\w-])"
        r"|(?<![\w.])(?=[\d.]*[a-f])[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4}(?![\w.])"  # as switches write it
    ),
    "guid": re.compile(
        r"(?<!\w)0x[0-9a-fA-F]{16}(?!\w)|(?<!\w)[SHR]-[0-9a-fA-F]{16}(?!\w)"
        r"|(?<![\w:])(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}(?![\w:])"
        r"|(?<=GUID )[0-9a-fA-F]{16}(?!\w)|(?<=guid: )[0-9a-fA-F]{16}(?!\w)"
    ),
    "instance": re.compile(r"(?<![\w-])i-(?=[0-9a-f]*\d)[0-9a-f]{8,17}(?![\w-])"),  # of a cloud
}
"""MAC addresses of Ethernet and InfiniBand, GUIDs of InfiniBand, and hashes of hosts in NCCL's logs."""

SERIAL = re.compile(
    r"(?P<key>(?<!\w)(?i:(?:[\w-]{0,30}[ _])?serial(?:[ _]?(?:number|num|no\.?|id))?|s/n|asset[ _]tag)"
    r"[\"']?[ \t]{0,40}[:=>]?[ \t]{0,40}[\"']?)"
    r"(?!serial-)(?P<serial>(?=[A-Za-z-]*\d)[A-Za-z0-9][A-Za-z0-9-]{4,})"
)

# -- addresses ---------------------------------------------------------------------------------------------------------

IPV4 = re.compile(r"(?<![\w.])(?P<address>\d{1,3}(?:\.\d{1,3}){3})(?![\w]|\.\d)")
IPV6 = re.compile(
    r"(?<![\w:.])(?P<interface>[a-z]{1,8}\d[\w.-]{0,12}:)??(?P<address>(?=[0-9a-fA-F:]{0,45}(?:\d|::[0-9a-fA-F]{2,}|[0-9a-fA-F]{3,}::))"
    r"(?:[0-9a-fA-F]{0,4}:){2,7}(?:[0-9a-fA-F]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?)(?P<zone>%\w+)?(?![\w:])"
)
VERSION_BEFORE = re.compile(
    r"(?i)(?:versions?|release|driver|firmware|vbios|cuda|cudnn|cublas\w*|nccl|ucx|ofed|[=~<>]=)[\"']?[ :=v-]*\Z"
)
"""The word before a version of four numbers, which looks like an address."""

# -- users and hosts ---------------------------------------------------------------------------------------------------

_FOLDER = r"[^/\\\s:\"'<>,;)\]]{1,200}"
HOME = re.compile(
    rf"(?P<folder>/(?:home\d*|homes|users?|Users|people)/(?:[a-z]\d?/)?|\b[A-Za-z]:[\\/]+Users[\\/]+)(?P<user>{_FOLDER})"
)
"""The folder of a user."""

SHARED_FOLDER = re.compile(
    rf"(?P<folder>/(?:\w{{0,10}}scratch\w{{0,8}}|gpfs\w{{0,8}}|lustre\w{{0,8}}|beegfs|weka\w{{0,8}}|fsx|nfs\w{{0,8}}|nobackup"
    rf"|work\d{{0,2}}|projects?|afs|u|global|data\d{{1,2}})/(?:[a-z]{{1,2}}\d?/){{0,2}})(?P<first>{_FOLDER})"
    rf"(?P<slash>/?)(?P<second>(?<=/){_FOLDER})?"
)
"""The first two folders in a file system of a cluster: those of a project and of a user."""

# All repetitions are bounded, so that the time is linear in the length of the text.
_HOST = r"[^\W_](?:[\w-]{0,62}[^\W_])?(?:\.[^\W_](?:[\w-]{0,62}[^\W_])?){0,8}"
_WITH_LETTER = rf"(?=[\w.-]{{0,255}}[A-Za-z]){_HOST}"
_WITH_NUMBER = rf"(?=[\w.-]{{0,255}}[A-Za-z])(?=[\w.-]{{0,255}}[\d.-]){_HOST}"

USER_AT_HOST = re.compile(rf"(?<![\w.+/:-])(?P<user>[A-Za-z][\w.+-]{{0,63}})@(?P<host>{_WITH_LETTER}|(?=\d+\.)[\d.]+)")
"""An address of e-mail, or of ssh."""

USER_SHAPES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![A-Za-z])(?:[A-Z]{1,20}_){0,4}(?:USER|USERNAME|LOGNAME|ACCOUNT)=[\"']?(?P<user>[A-Za-z][\w.-]{1,63})",
        r"(?i:(?<![A-Za-z])(?:user|owner)(?:[ _]?(?:name|id))?)(?:=|[\"'][ \t]*:[ \t]*)[\"']?"
        r"(?P<user>[A-Za-z][\w.-]{1,63})(?![\w[]|\((?!\d))",
        r"(?<![A-Za-z])(?:Account=|uid=\d{1,10}\()(?P<user>[A-Za-z][\w.-]{1,63})",  # of Slurm, and of id
        r"(?<!\S)(?:-u|--user(?:name)?)[ =](?P<user>[A-Za-z][\w.-]{1,63})(?=[^|;&\n]{0,100} -p)",
        r" for (?:user )?(?P<user>[A-Za-z][\w.-]{1,63}) from (?=\S*\d)",  # of sshd
        r"(?<![\w/.~])~(?P<user>[A-Za-z][\w.-]{1,63})/",
        r"\[(?P<user>[A-Za-z][\w.-]{1,63})@[\w.-]{1,63} [^\]\n]{1,100}\][$#]",  # a prompt
    )
)
"""Names of users by the words around them."""

_DOMAINS = (
    "com|org|net|edu|gov|mil|int|io|ai|dev|cloud|de|fr|uk|ch|at|nl|eu|jp|cn|kr|us|ca|au|it|es|se|no|fi|dk|pl|cz|be|sg"
    "|local|lan|internal|intern|intra|intranet|corp|hpc|example|invalid|localdomain|svc"
)

TOP_DOMAINS = frozenset(_DOMAINS.split("|"))

PRODUCT = re.compile(
    r"(?i)(?:a100|a800|a10g?|a30|a40|h100|h200|h800|h20|b100|b200|b300|gb200|gb300|gh200|l4|l40s?|v100|t4|p100|k80|mi\d{3}\w*"
    r"|rtx.*|gpu\d*|cpu\d*|cuda[\d.]*|sm_?\d+|mlx\d.*|eth\d*|ib\d*|en[ops]\w*|bond\d*|hsn\d*|nvlink.*|rank\d*|numa\d*)"
)
"""Products and devices, which stand where the name of a host may stand."""

NUMBERED_HOST = re.compile(r"(?:gpu|cpu)\d{2,}")
"""Hosts of many clusters, which look like devices."""

FRAME = re.compile(rf"(?<![\w.-])(?P<host>{_WITH_LETTER}):\d+:\d+ (?:\[-?\d+\] |NCCL )")
"""The head of a line of NCCL."""

_POD = r"(?P<pod>[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)"
POD_SHAPES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![\w/.-])(?:pods?|nodes?|jobs?|deployments?|statefulsets?|services?|svc|namespaces?|pytorchjobs?|mpijobs?"
        rf"|rayclusters?|rayjobs?|jobsets?|replicasets?)(?:\.[a-z.]{{1,60}})?/{_POD}",
        rf"(?i:\bpods?[:=]? [\"'])(?:[a-z0-9-]{{1,63}}/)?{_POD}",
        rf"\b[Pp]od (?=[a-z0-9.]{{1,63}}-){_POD}",
    )
)
"""Names of pods and other objects of Kubernetes."""

POD_SUFFIX = re.compile(
    r"(?:-(?:master|worker|launcher|head|leader|replica|server|ps|chief)s?)?(?:-\d{1,5}){0,3}"
    r"(?:-(?=[a-z0-9]*\d)[a-z0-9]{8,10}-[a-z0-9]{5}|-(?=[a-z0-9]*\d)[a-z0-9]{5})?\Z"
)

_HOST_WORDS = (
    r"(?:(?:local|remote|head|master|launch|compute|target|source|peer|batch|submit)[ _-]?)?"
    r"(?:hosts?|host[ _-]?names?|nodes?|node[ _-]?names?|node[ _-]?ids?|servers?|peers?|machines?|pods?|pod[ _-]?names?"
    r"|master[ _-]addr(?:ess)?|machine[ _-]names?)"
)

HOST_SHAPES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\[(?P<host>{_WITH_LETTER}):\d{{2,}}\]",  # Open MPI
        rf"(?<![\w.:-])(?P<host>{_WITH_LETTER})<\d{{3,}}>",  # NCCL's addresses
        rf"'(?P<host>{_WITH_LETTER})_\d{{2,}}_\d+'",  # the names of nodes of torchrun
        rf"\[(?P<host>{_WITH_LETTER})\]:\d{{2,5}}(?!\d)|\((?P<second>{_WITH_LETTER}), \d{{2,5}}\)",  # stores of PyTorch
        rf"(?<!\w)host[ \t]{{2,20}}: (?P<host>{_WITH_LETTER})(?!\S)",  # the summary of torchrun
        rf"(?i:\brdzv[_-]endpoint[\"']?[=: ]+[\"']?|\bhost=[\"']?|\bswitch_?name[\"']?[=:][ \t]*[\"']?"
        rf"|--?(?:master|head|server|node|dist)[_-]?(?:addr(?:ess)?|ip|host|name)[= ][\"']?|--address[= ][\"']?)"
        rf"(?![a-z]{{1,8}}://)(?P<host>{_WITH_LETTER})(?![\w(\[])",
        rf"(?i:\b(?:to|from|for|with|at|reach) )(?P<host>{_WITH_NUMBER}):\d{{2,5}}(?![\w:.])",
        rf"(?i:\b(?:connect\w{{0,4}} to|connection to|reach|cluster at address:|listening on) )"
        rf"(?P<host>{_WITH_LETTER}):\d{{2,5}}"
        r"(?![\w:.])",
        rf"(?<=://)(?:[^\s/@]{{0,700}}@)?(?P<host>{_WITH_LETTER})",
        rf"(?<![\w.@/-])(?P<host>(?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,62}}[A-Za-z0-9])?\.){{1,8}}(?:{_DOMAINS}))(?![\w-]|\.\w|\()",
        r"(?<![\w.-])(?P<host>ip-\d+-\d+-\d+-\d+)(?![\w-])",  # AWS
        rf"(?i:\b(?:host ?name|node ?name|slurmd_nodename|master[_ ]addr(?:ess)?|head[_ ]node|node[_ ]?list)"
        rf"[\"']?[ \t]*[:=][ \t]*[\"']?)(?P<host>{_WITH_LETTER})",
        rf"(?i:\b(?:cluster[_ ]?name)[\"']?[ \t]*[:=][ \t]*[\"']?)(?P<host>{_WITH_LETTER})",
        rf"(?i:\b(?:hosts?|nodes?|servers?|peers?|machines?)[\"']?[ \t]*[:=][ \t]*[\"']?)(?P<host>{_WITH_NUMBER})",
        # A value in quotes, the element of an XML document, or the rest of a line.
        rf"(?i:(?<![A-Za-z]){_HOST_WORDS}(?:[\"'][ \t]*:[ \t]*[\"']|=[\"']|>))(?P<host>{_WITH_LETTER})(?=[\"'<:])",
        rf"(?im:(?<![A-Za-z]){_HOST_WORDS}[ \t]{{0,20}}[:=][ \t]{{0,20}})"
        rf"(?P<host>{_WITH_LETTER})(?=,?[ \t\r]{{0,20}}(?:\n|\Z))",
        rf"(?i:\b(?:host|node|server|peer|machine|ssh|rdzv_endpoint=|remote) )(?P<host>{_WITH_NUMBER})(?![\w(=]|\.\w)",
        rf"(?i:\b(?:on|to|from|at) (?:the )?(?:node|host|machine|server):? ['\"]?)"
        rf"(?P<host>{_WITH_LETTER})(?![\w(=]|\.\w)",
        rf"(?i:\b(?:host|resolve hostname|known hosts:|added '|hostname for) )?(?<=[ '])(?P<host>{_WITH_LETTER})"
        r"(?= port \d{1,5}\b|: (?:Name or service not known|Temporary failure in name|Permission denied \(public))",
        rf"(?<![^\n])(?P<host>{_WITH_LETTER})(?=: (?:Permission denied \(|ssh: |Connection (?:refused|closed|timed))"
        r"|[ \t]+(?:max[-_])?slots=\d)",
        rf"(?i:Could not resolve hostname |Permanently added '|Host key for )(?P<host>{_WITH_LETTER})",
        rf"\bON (?P<host>{_WITH_LETTER}) CANCELLED|\bRUNNING AT (?P<second>{_WITH_LETTER})",  # Slurm, Hydra
        rf"\b(?:srun|slurmstepd|mpirun|mpiexec|prterun): (?:\w+: )?(?P<host>{_WITH_NUMBER}): ",
        rf"\bsrun: error: (?P<host>{_WITH_LETTER}): tasks? \d|\bpmixp_coll_ring\w+: (?P<second>{_WITH_LETTER})",
        rf"\b(?:start failed on|Task launch for) (?P<host>{_WITH_LETTER})",  # Slurm
        rf"\bPid +\d+ on +(?P<host>{_WITH_LETTER}) +device",  # nccl-tests
        rf"\bNode (?P<host>{_WITH_LETTER}) (?:running process|managing GPU|not responding|is down|unexpectedly)",
        rf"(?i:\b(?:rank|task|process)s? \d+ (?:\(|on |at )(?:host |node )?)(?P<host>{_WITH_NUMBER})(?![\w-])",
        rf"(?<!\S)(?:[A-Z][a-z]{{2}} +\d+ [\d:]{{8}}|\d{{4}}-\d\d-\d\dT\S+) (?P<host>{_WITH_LETTER}) "
        r"(?:kernel|[\w./-]+(?:\[\d+\])?):",
    )
)
"""Names of hosts by the words around them."""

_NAMES = r"[A-Za-z0-9_][\w.,:\[\]-]{1,3000}"
HOST_LISTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?i:(?<![A-Za-z])(?:\w{0,40}node_?list|nodes?|hosts?|host_?list|node_?name|failures? on"
        r"|(?:on|of) (?:nodes?|hosts?))"
        r"[\"']?[ \t]{0,40}[:= ][ \t]{0,40}[\"']?)(?P<hosts>(?=[\w.,-]{1,300}\[\d{1,15}[,-])[\w.,\[\]-]{2,3000})",
        r"(?<!\S)(?:-H|--hosts?|--nodelist)[= ](?P<hosts>(?=[\w.-]{0,100}(?:\d|:\d|,))[A-Za-z][\w.,:-]{1,3000})",
        # With letters only, a list has a comma, or follows a word that nothing but hosts follow.
        r"(?<!\S)(?:-H|-w|--hosts?|--nodelist|--exclude|--include|-host)[= ][\"']?"
        r"(?P<hosts>(?=[\w.-]{1,100}[,:])[A-Za-z][\w.,:\[\]-]{1,3000})",
        rf"(?<!\S)--nodelist[= ](?P<hosts>{_NAMES})",
        r"(?<![A-Za-z])(?:[A-Z]{1,20}_){0,4}(?:HOST|HOSTNAME|HOSTS|NODE|NODES|NODELIST|NODENAME|NODE_NAME|POD_NAME|MASTER_ADDR"
        rf"|TOPOLOGY_ADDR)(?:=|[\"']?: ?)[\"']?(?P<hosts>{_NAMES})",
        rf"(?<![A-Za-z])(?:Req|Exc|Sched)?(?:NodeList|BatchHost|AllocNode|NodeName|NodeHostName|NodeAddr|Nodes)=(?P<hosts>{_NAMES})",
        r"(?i:(?<![A-Za-z])(?:nodes?|hosts?):? )(?P<hosts>[A-Za-z][\w.-]{1,100}(?:,[A-Za-z][\w.-]{1,100}){1,300})"
        r"(?![\w=(])",
    )
)
"""Lists of hosts: in the notation of Slurm, in variables, and in options of launchers."""

RESOURCES = re.compile(r"(?i)(?:world info dict: ?|rank_mapping=)(?P<resources>[^\n]{1,20000})")
RESOURCE = re.compile(rf"['\"](?P<host>{_WITH_LETTER})['\"]: \[\d")
"""The hosts of DeepSpeed with their GPUs."""

HOST_BLOCKS = re.compile(
    rf"(?im:(?<![A-Za-z]){_HOST_WORDS}[\"']?[ \t]{{0,20}}[:=])"
    r"(?P<hosts>[ \t]{0,20}\[[\w.\"', \t\n:-]{1,10000}\]"
    r"|(?:[ \t]*\r?\n[ \t]*- [ \t]*[\"']?[A-Za-z0-9][\w.-]{1,200}[\"']?(?![^\r\n])){1,5000})"
)
"""Lists of hosts in JSON and YAML, which may have several lines."""

BLOCK_HEAD = re.compile(rf"(?i:(?<![A-Za-z]){_HOST_WORDS}[\"']?[ \t]{{0,20}}[:=])[ \t\r]{{0,20}}(?:\[|\n|\Z)")
"""The line with which every match of `HOST_BLOCKS` begins."""

LISTED_ITEM = re.compile(r"[A-Za-z0-9][\w.-]{1,200}")

BRACKETED = re.compile(r"(?<![\w.-])(?P<stem>[^\W_][\w.-]{0,62})(?P<numbers>\[\d[\d, -]{0,2000}\])")
"""A list of hosts in the notation of Slurm."""

_PUBLIC = """
nvidia.com github.com github.io githubusercontent.com gitlab.com pytorch.org python.org pypi.org readthedocs.io
arxiv.org wikipedia.org open-mpi.org openmpi.org mpich.org mpi-forum.org kernel.org docker.com docker.io nvcr.io
huggingface.co anaconda.org conda-forge.org schedmd.com intel.com amd.com microsoft.com ubuntu.com debian.org
redhat.com w3.org jupyter.org matplotlib.org numpy.org pydata.org stackoverflow.com stackexchange.com openucx.org
amazon.com google.com meta.com apache.org gnu.org zeromq.org ietf.org rfc-editor.org jax.dev
"""
PUBLIC_DOMAINS = tuple(_PUBLIC.split())
"""Sites of documentation and software, which do not identify a person."""
