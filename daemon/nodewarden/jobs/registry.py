"""The jobs of this node by user and name, bounded in number whatever peers do."""

from nodewarden.errors import RefusedError
from nodewarden.jobs.job import Job

JOBS_MAX = 256
JOBS_LOST_PER_UID = 16


class Registry:
    """All jobs, by (uid, name): the same name of another user is another job, so that names cannot be squatted."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, str], Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def all(self) -> list[Job]:
        """Every job, by id; safe to change the registry while going through it."""
        return sorted(self._jobs.values(), key=lambda job: job.id)

    def get(self, uid: int, name: str) -> Job | None:
        """The job of this user with this name."""
        return self._jobs.get((uid, name))

    def get_or_new(self, uid: int, name: str) -> Job | None:
        """The job of this user with this name, a new one when it is the first; None when there is no room."""
        job = self._jobs.get((uid, name))
        if job is None and len(self._jobs) < JOBS_MAX:
            job_id = name if self.by_id(name) is None else f"{name}@{uid}"
            if self.by_id(job_id) is None:
                job = self._jobs[uid, name] = Job(job_id, (uid, name))
        return job

    def by_id(self, job_id: str) -> Job | None:
        """The job with this id."""
        return next((job for job in self._jobs.values() if job.id == job_id), None)

    def named(self, job_id: str) -> Job:
        """The job with this id.

        Raises:
            RefusedError: there is none ("unknown_job"); the message names those that are.
        """
        job = self.by_id(job_id)
        if job is None:
            known = ", ".join(job.id for job in self.all()) or "none"
            raise RefusedError(f"no job {job_id!r} on this node; known: {known}", "unknown_job")
        return job

    def forget(self, job: Job) -> None:
        """Drop a job."""
        self._jobs.pop(job.key, None)

    def lost_beyond_limit(self, uid: int) -> list[Job]:
        """The oldest of a user's lost jobs that are too many to keep."""
        lost = [job for job in self._jobs.values() if job.key[0] == uid and job.ended_at_s is not None]
        return sorted(lost, key=lambda job: job.ended_at_s or 0.0)[:-JOBS_LOST_PER_UID]
